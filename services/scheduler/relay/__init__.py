"""Carries requests to engines and their answers back."""
