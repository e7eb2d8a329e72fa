"""What users pay, on this commit and on an earlier one: `make bench-watch`."""
