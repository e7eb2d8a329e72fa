"""Drives the placement core: the pool, its predictors and the tagger."""
