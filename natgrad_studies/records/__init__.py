"""The record book: standard problems for physics-informed networks, beside published errors."""
