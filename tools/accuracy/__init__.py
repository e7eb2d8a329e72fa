"""Replays recorded runs through the twin."""
