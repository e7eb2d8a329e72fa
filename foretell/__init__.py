"""Foretell: LLM serving placed by prediction. The pure library; see docs/structure.md."""

__version__ = "0.1.0"
