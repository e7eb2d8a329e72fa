"""Hints, limits, and the rest of an estimate as tokens appear."""

import pytest

from foretell.length import clip, from_hint
from foretell.model import LengthEstimate

ESTIMATE = LengthEstimate(120.0, ((0.1, 20.0), (0.5, 100.0), (0.9, 400.0)), "history")


def test_a_hint_is_taken_at_its_word() -> None:
    assert from_hint(42) == LengthEstimate(42.0, (), "hint")
    with pytest.raises(ValueError, match="hint_tokens"):
        from_hint(0)


def test_clip_cuts_every_figure() -> None:
    assert clip(ESTIMATE, 100) == LengthEstimate(
        100.0, ((0.1, 20.0), (0.5, 100.0), (0.9, 100.0)), "history"
    )


def test_clip_brings_every_figure_up_to_the_least() -> None:
    assert clip(ESTIMATE, 0, 150) == LengthEstimate(
        150.0, ((0.1, 150.0), (0.5, 150.0), (0.9, 400.0)), "history"
    )
    assert clip(ESTIMATE, 200, 50).quantiles == ((0.1, 50.0), (0.5, 100.0), (0.9, 200.0))


def test_clip_without_a_limit_changes_nothing() -> None:
    assert clip(ESTIMATE, 0) is ESTIMATE
    assert clip(ESTIMATE, 1000) == ESTIMATE
