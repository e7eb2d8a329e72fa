"""`foretell accuracy --live`: a real engine under load, and how far off its predictor is."""
