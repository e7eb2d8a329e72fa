"""Predictions against published and live engines."""
