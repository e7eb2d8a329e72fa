"""Measures predictions against a live engine."""
