"""Benchmarks: measurements, each with its page and its numbers."""
