"""Real vLLM engines on the CPU whose steps last as long as a GPU profile says."""
