"""Finds the engines' flags that serve a trace better."""
