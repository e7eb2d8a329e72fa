"""Foretell places LLM requests by prediction. This is the library; see docs/structure.md."""

__version__ = "0.1.0"
