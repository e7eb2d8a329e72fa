"""`foretell profile measure`: how fast a live endpoint is, found by driving it.

`endpoint` speaks HTTP, `probe` counts an engine's steps by the tokens of a stream, `plan` chooses
what to measure, `session` measures it, `fit` makes coefficients of that, `run` puts all of it
together, and `show` is what a terminal sees.
"""

from cli.measure.run import MeasureError, Measurement, MeasureOptions, measure
from cli.measure.show import measure_to

__all__ = ["MeasureError", "MeasureOptions", "Measurement", "measure", "measure_to"]
