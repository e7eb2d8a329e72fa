"""Batches of requests as in OpenAI's Batch API, without I/O or clocks: times are arguments.

`states` has the life of a batch, `lines` the validation of its input, `records` the lines of its
output, `release` the number of requests in flight, and `promises` the predicted ends.
"""
