"""`foretell bench`: what predictions cost, measured here and now.

`cases` draws engine states; `kernel` times the compiled call of a prediction, `iterations` the
twin alone, `rpc` a predictor process as its clients see it; `predict` puts them together.
"""
