"""Decides how many engines there should be, tells it, and where it may, starts and stops them."""
