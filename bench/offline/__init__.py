"""Orders of offline work, simulated."""
