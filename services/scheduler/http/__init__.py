"""The HTTP surface: authentication, parsing, limits, errors."""
