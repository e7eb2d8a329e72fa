"""Callers: their keys, what they may use and have spent, and their places among all requests."""
