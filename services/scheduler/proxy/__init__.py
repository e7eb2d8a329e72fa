"""What passes through as it comes: files and batches, and the responses that engines keep."""
