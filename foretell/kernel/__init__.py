"""All compiled code: vLLM's scheduling rules, step times and forecasts, over arrays of numbers.

Functions here are compiled by Numba and know neither names nor objects: a sequence is a row, time
is a float. `foretell.latency` and `foretell.engine` give them their meaning.
"""
