"""Carries requests to engines and answers back to clients."""
