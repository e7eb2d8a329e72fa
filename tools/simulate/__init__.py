"""Runs the simulator on a trace."""
