"""The vLLM plugin: a scheduler class that publishes what the engine does."""
