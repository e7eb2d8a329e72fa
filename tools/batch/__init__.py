"""Batches without a server: `foretell run-batch`."""
