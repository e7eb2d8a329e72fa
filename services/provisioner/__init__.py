"""Decides how many engines there should be, publishes it, and may start and stop them."""
