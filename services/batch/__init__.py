"""The Batch API: files, batches, and the worker that has their requests answered."""
