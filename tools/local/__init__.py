"""Runs a cluster on this machine."""
