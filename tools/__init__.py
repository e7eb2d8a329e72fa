"""What commands and benchmarks do: profiles, training, scoring, measuring, local clusters."""
