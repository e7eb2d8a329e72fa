"""Writes files derived from a cluster file, which run the cluster elsewhere."""
