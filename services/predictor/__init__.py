"""The sidecar beside each engine: holds its twin and answers `Predict`."""
