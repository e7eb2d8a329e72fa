"""GPU profiles: imported from published tables, or learnt by a predictor."""
