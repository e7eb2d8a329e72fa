"""The compiled core: vLLM's scheduling rules, step times and forecasts, over arrays of numbers.

The rules are C++ (`src/`), compiled to one extension module, `kernel.compiled`. They know neither
names nor objects: a sequence is a row, time is a float. The modules here say what the rows and
arrays are; `foretell.latency` and `foretell.engine` give them their meaning.
"""
