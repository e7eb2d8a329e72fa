"""What became of requests: metrics, the request log, lessons for the length estimators."""
