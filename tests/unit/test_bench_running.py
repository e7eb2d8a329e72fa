"""`bench.length.running` against the bench that tells of every answer at once."""

import numpy as np
import pytest

from bench.length import adapt as length_adapt
from bench.length import running as length_running
from bench.length.base import Floats, Stream
from bench.length.methods import Adapted
from foretell.length.bins import BINS

AT_ONCE, ENDED, RUNNING = length_running.METHODS


@pytest.fixture
def given() -> tuple[Stream, Floats]:
    """Sixty answers of which every sixth was cut, and a base that does not know them."""
    rng = np.random.default_rng(1)
    tokens = np.maximum(1, rng.lognormal(5.0, 1.0, 60)).astype(np.int64)
    features = rng.normal(size=(60, 3))
    stream = Stream("s", features, tokens, np.arange(60) % 6 == 0, ("a", "b") * 30)
    return stream, rng.dirichlet(np.ones(BINS), 60)


def predict(method: str, in_flight: float, given: tuple[Stream, Floats]) -> Floats:
    stream, base = given
    return length_running.predict(method, in_flight, stream, base, stream.features)


def test_told_at_once_it_is_the_adapted_stream(given: tuple[Stream, Floats]) -> None:
    stream, base = given
    expected = length_adapt.predict(Adapted(regressed=True), stream, base, stream.features)
    for in_flight in (1, 50):
        assert np.array_equal(predict(AT_ONCE, in_flight, given), expected)


def test_what_ends_before_the_next_comes_is_as_good_as_told_at_once(
    given: tuple[Stream, Floats],
) -> None:
    expected = predict(AT_ONCE, 1, given)
    assert np.array_equal(predict(ENDED, 1e-3, given), expected)
    assert not np.array_equal(predict(ENDED, 10, given), expected)


def test_running_answers_tell_something(given: tuple[Stream, Floats]) -> None:
    assert not np.array_equal(predict(RUNNING, 10, given), predict(ENDED, 10, given))
