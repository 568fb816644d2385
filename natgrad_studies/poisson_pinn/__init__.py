"""The PINN study: a network that solves Poisson's equation, in eight metrics and by rivals."""
