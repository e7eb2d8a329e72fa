"""The emulated engine: the twin driven by a wall clock, behind vLLM's OpenAI API.

It needs neither GPU nor model. It says that it is emulated: by the header `x-foretell-emulated` of
every answer, the model card's `owned_by`, and `emulated` in its snapshots.
"""
