"""How long a step takes: from datasheets, from measurements, and from the engine's own steps.

Import from the modules. This one stays empty: `foretell.config` reads profiles in processes that
have no numpy.
"""
