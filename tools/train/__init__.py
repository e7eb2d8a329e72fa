"""Trains the length model."""
