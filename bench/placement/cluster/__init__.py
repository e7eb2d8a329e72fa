"""A real cluster of emulated engines under a load: the parts of `bench.placement.real_cluster`."""
