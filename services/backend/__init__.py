"""Engines: the vLLM plugin, the emulated engine, and the launcher of either."""
