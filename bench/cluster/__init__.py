"""A real cluster of emulated engines under a load: the parts of `bench.placement_cluster`."""
