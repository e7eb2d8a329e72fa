"""The benchmark harness: cases, the machine, timed predictions."""
