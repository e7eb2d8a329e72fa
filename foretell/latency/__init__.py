"""How long a step takes: from datasheets, from measurements, and from the engine's own steps.

Import from the modules. This one must stay empty, since `foretell.config` reads profiles in
processes without numpy.
"""
