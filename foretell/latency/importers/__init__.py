"""Profiles from the kernel times in NVIDIA aiconfigurator's tables; the caller reads the files."""
