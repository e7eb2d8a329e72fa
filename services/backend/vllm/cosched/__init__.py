"""Offline requests beside online ones, in unforked vLLM."""
