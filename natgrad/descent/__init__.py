"""The loop and its parts: methods, steps, stops, checkpoints, progress."""
