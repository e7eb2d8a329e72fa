"""Placement policies, simulated and on real clusters."""
