"""What batches cost online requests, and what is left for batches."""
