"""The emulated engine: the twin driven by a wall clock, behind vLLM's OpenAI API.

It needs neither GPU nor model, and says so in every answer: the header `x-foretell-emulated`,
the model card's `owned_by`, and `emulated` in its snapshots.
"""
