"""Numerical studies: each reproduces an experiment and writes a folder with numbers and figures."""
