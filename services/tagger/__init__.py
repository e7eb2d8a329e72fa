"""Estimates output-length distributions from prompts, over gRPC and in micro-batches."""
