"""Batches of requests as OpenAI's Batch API has them: what is allowed, and how it is shown.

`states` has the life of a batch, `lines` the validation of its input, `records` the lines of its
output. Nothing here does I/O or knows the time: times are arguments, in Unix seconds.
"""
