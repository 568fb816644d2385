"""The problem at one θ as a solver sees it: model, metric and solver put together."""
