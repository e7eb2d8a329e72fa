"""The sidecar beside each engine: hears it, calibrates, and streams its snapshots."""
