"""Makes profiles of the kernel times in NVIDIA aiconfigurator's tables, read by the caller."""
