"""The record book: standard problems for physics-informed networks, and what each method reaches."""
