"""Benchmarks: each answers one question and records its answer under bench/results."""
