"""Full waveform inversion (section 4.3 of the paper): a velocity model from recorded waves."""
