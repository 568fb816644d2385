"""The Gaussian mixture study: the paper's section 4.1, its W₂ corrected, and a full fit."""
