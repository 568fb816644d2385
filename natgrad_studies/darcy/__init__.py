"""The Darcy study: a log-permeability field from pressures, natural gradients beside L-BFGS."""
