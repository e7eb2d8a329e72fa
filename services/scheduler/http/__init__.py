"""What HTTP requests say and may do: authentication, limits, parsing, targets, errors."""
