"""Scores estimates of output lengths."""
