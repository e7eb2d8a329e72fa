"""Hypothesis has no deadlines here: it shall find counterexamples, not slow machines."""

from hypothesis import HealthCheck, settings

from tests.sweeps import cases

settings.register_profile(
    "any_machine",
    deadline=None,
    max_examples=cases(100, 25),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any_machine")
