"""What callers may use: limits of their rates, and places among all requests."""
