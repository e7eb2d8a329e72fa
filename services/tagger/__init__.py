"""Prompt to output-length distribution: gRPC, micro-batched."""
