"""The sidecar beside each engine: follows it, calibrates step times, and streams snapshots."""
