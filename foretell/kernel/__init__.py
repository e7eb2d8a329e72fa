"""The compiled core: vLLM's scheduling rules, step times and forecasts, over arrays of numbers.

The rules are C++ (`src/`), compiled to one extension module, `kernel.compiled`. It has neither
names nor objects: a sequence is a row, time is a float. The modules here define the rows and
arrays; `foretell.latency` and `foretell.engine` wrap them in classes.
"""
