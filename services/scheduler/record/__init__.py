"""Records the outcome of requests: metrics, the request log, feedback for length estimators."""
