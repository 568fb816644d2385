"""Physics-informed networks: losses made of residuals at points."""
