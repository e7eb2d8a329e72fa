"""GPU profiles: imported from published tables, or measured at a live endpoint.

To measure: `endpoint` speaks HTTP, `probe` counts an engine's steps by the tokens of a stream,
`plan` chooses what to measure, `session` measures it, `fit` makes coefficients of that, `run` puts
all of it together, and `show` is what a terminal sees.
"""
