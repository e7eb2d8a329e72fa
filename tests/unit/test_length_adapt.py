"""Distributions adapted to the lengths of a serving model's answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from foretell.length.adapt import Adapter
from foretell.length.bins import BINS, EDGES, bin_of, quantiles
from foretell.length.conversation import PLAIN, Kind

Floats = NDArray[np.float64]

SEEDS = (1, 2, 3)


def around(log_tokens: Floats, sigma: float) -> Floats:
    """(n, BINS): approximately log-normal distributions."""
    edges = np.append(np.log(EDGES[1:]), np.inf)
    below = 1.0 / (1.0 + np.exp(-1.7 * (edges - log_tokens[:, None]) / sigma))
    return np.diff(below, axis=1, prepend=0.0)


def draw(rows: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """A length from each row."""
    levels = rng.random(len(rows))
    below = np.cumsum(rows, axis=1)
    return np.array(
        [
            np.ceil(np.interp(level, np.concatenate(([0.0], row[:-1])), EDGES))
            for level, row in zip(levels, below, strict=True)
        ],
        dtype=np.int64,
    )


def learn(
    adapter: Adapter,
    rows: Floats,
    tokens: NDArray[np.int64],
    *,
    model: str = "m",
    group: str = "",
    kind: Kind = PLAIN,
) -> Adapter:
    for row, length in zip(rows, tokens, strict=True):
        adapter.observe(model, row, int(length), group=group, kind=kind)
    return adapter


def coverage(rows: Floats, tokens: NDArray[np.int64], level: float) -> float:
    """Share of `tokens` within the central interval with this probability."""
    low, high = quantiles(rows, ((1 - level) / 2, (1 + level) / 2)).T
    return float(((tokens > low) & (tokens <= np.ceil(high))).mean())


def bases(count: int, rng: np.random.Generator, sigma: float = 0.5) -> Floats:
    return around(rng.normal(5.0, 0.6, count), sigma)


distributions = st.lists(
    st.floats(0.0, 1.0), min_size=BINS, max_size=BINS
).map(lambda numbers: (np.array(numbers) + 1e-9) / (np.sum(numbers) + BINS * 1e-9))  # fmt: skip
observations = st.lists(
    st.tuples(distributions, st.integers(0, 100_000), st.booleans(), st.sampled_from(("", "g"))),
    max_size=12,
)


def test_a_model_never_observed_gets_what_the_base_said() -> None:
    rows = bases(3, np.random.default_rng(0))
    adapter = learn(Adapter(), rows, np.array([10, 20, 30]), model="other")
    assert np.array_equal(adapter.adjust("m", rows), rows)
    assert np.array_equal(adapter.adjust("m", rows[0]), rows[0])


@given(observations, distributions, st.sampled_from(("", "g", "unseen")))
def test_whatever_was_observed_probabilities_remain_so(
    seen: list[tuple[Floats, int, bool, str]], row: Floats, group: str
) -> None:
    adapter = Adapter()
    for base, tokens, censored, of in seen:
        adapter.observe("m", base, tokens, censored, of, base[:5])
    adjusted = adapter.adjust("m", row, group, row[:5])
    assert adjusted.shape == (BINS,)
    assert adjusted.min() >= 0.0
    assert adjusted.sum() == pytest.approx(1.0, abs=1e-9)


def test_rows_are_adjusted_one_by_one_as_together() -> None:
    rng = np.random.default_rng(0)
    rows = bases(50, rng)
    adapter = learn(Adapter(), rows, draw(rows, rng) * 2, group="g")
    together = adapter.adjust("m", rows, "g")
    for row, adjusted in zip(rows, together, strict=True):
        assert adapter.adjust("m", row, "g") == pytest.approx(adjusted, abs=1e-12)


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_that_answers_so_many_times_as_long_is_known_after_300(
    factor: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = bases(2300, rng)
    tokens = np.maximum(1, np.round(draw(rows, rng) * factor)).astype(np.int64)
    adjusted = learn(Adapter(), rows[:300], tokens[:300]).adjust("m", rows[300:])
    later = tokens[300:]
    for level in (0.5, 0.8, 0.95):
        assert coverage(adjusted, later, level) == pytest.approx(level, abs=0.06)
    medians = quantiles(adjusted, (0.5,))[:, 0]
    own = np.abs(np.median(tokens[:300]) - later).mean()
    assert np.abs(medians - later).mean() < 0.85 * own


@pytest.mark.parametrize("kind", ["stop", "structured", "tools"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_kind_that_is_much_shorter_is_known_after_300_and_plain_requests_stay_as_they_were(
    kind: Kind, seed: int
) -> None:
    """A tenth as long, and independent of the base. Both kinds alternate."""
    rng = np.random.default_rng(seed)
    rows, others = bases(2300, rng), bases(2300, rng)
    plain = np.maximum(1, np.round(draw(rows, rng) * 1.5)).astype(np.int64)
    short = np.ceil(np.exp(rng.normal(2.8, 0.6, 2300))).astype(np.int64)
    alone = learn(Adapter(), rows[:300], plain[:300])
    assert np.array_equal(alone.adjust("m", others, kind=kind), alone.adjust("m", others))
    both = Adapter()
    for at in range(300):
        learn(both, rows[at : at + 1], plain[at : at + 1])
        learn(both, others[at : at + 1], short[at : at + 1], kind=kind)
    adjusted = both.adjust("m", others[300:], kind=kind)
    for level in (0.5, 0.8, 0.95):
        assert coverage(adjusted, short[300:], level) == pytest.approx(level, abs=0.06)
    assert np.array_equal(both.adjust("m", rows[300:]), alone.adjust("m", rows[300:]))
    assert np.array_equal(both.adjust("other", rows, kind=kind), rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_base_too_sure_of_itself_is_widened(seed: int) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.normal(5.0, 0.6, 2300)
    tokens = draw(around(centres, 0.8), rng)
    sure = around(centres, 0.25)
    adjusted = learn(Adapter(), sure[:300], tokens[:300]).adjust("m", sure[300:])
    assert coverage(sure[300:], tokens[300:], 0.8) < 0.5
    assert coverage(adjusted, tokens[300:], 0.8) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_more_skewed_than_the_base_says_are_known_at_every_level(seed: int) -> None:
    """Exponential lengths, whose logarithm is skewed to the left, and a symmetric base."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(5.0, 1.0, 4000)
    tokens = np.ceil(np.exp(centres) * rng.exponential(1.0, 4000)).astype(np.int64)
    rows = around(centres, 0.8)
    adjusted = learn(Adapter(), rows[:2000], tokens[:2000]).adjust("m", rows[2000:])
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    found = (tokens[2000:, None] <= np.ceil(quantiles(adjusted, levels))).mean(axis=0)
    assert found == pytest.approx(np.array(levels), abs=0.03)


def test_a_base_that_says_nothing_is_left_for_the_models_own_lengths() -> None:
    rng = np.random.default_rng(1)
    rows = bases(1000, rng)
    tokens = draw(around(np.full(1000, 6.0), 0.3), rng)
    adapter = learn(Adapter(), rows[:500], tokens[:500])
    medians = quantiles(adapter.adjust("m", rows[500:]), (0.5,))[:, 0]
    own = np.abs(np.median(tokens[:500]) - tokens[500:]).mean()
    assert np.abs(medians - tokens[500:]).mean() < 1.1 * own


def test_a_base_that_is_right_stays() -> None:
    rng = np.random.default_rng(2)
    rows = bases(3000, rng)
    tokens = draw(rows, rng)
    adjusted = learn(Adapter(), rows[:1000], tokens[:1000]).adjust("m", rows[1000:])
    later, own = np.arange(2000), bin_of(tokens[1000:])
    lost = np.log(rows[1000:][later, own] / adjusted[later, own]).mean()
    assert lost < 0.03


def test_a_group_with_lengths_of_its_own_is_known_by_them() -> None:
    rng = np.random.default_rng(3)
    rows = bases(200, rng)
    adapter = Adapter()
    for row in rows:
        adapter.observe("m", row, int(rng.integers(5, 9)), group="labels")
        adapter.observe("m", row, int(rng.integers(300, 600)), group="essays")
    labels, essays = (
        quantiles(adapter.adjust("m", rows, group), (0.5,)).mean() for group in ("labels", "essays")
    )
    assert labels < 12
    assert 250 < essays < 650


def test_what_requests_show_of_their_length_is_learnt() -> None:
    """The base is the same for all requests."""
    rng = np.random.default_rng(8)
    rows = np.repeat(around(np.array([5.0]), 0.6), 1300, axis=0)
    seen = rng.normal(size=(1300, 3))
    tokens = np.round(np.exp(5.0 + 0.5 * seen[:, 0] + 0.2 * rng.normal(size=1300))).astype(int)
    adapter = Adapter()
    for row, length, shown in zip(rows[:300], tokens[:300], seen[:300], strict=True):
        adapter.observe("m", row, int(length), seen=shown)
    unseen, told = (
        np.abs(quantiles(adapter.adjust("m", rows[300:], seen=s), (0.5,))[:, 0] - tokens[300:])
        for s in (None, seen[300:])
    )
    assert told.mean() < 0.6 * unseen.mean()


@pytest.mark.parametrize("limit", [50, 100, 250])
def test_answers_cut_at_a_limit_are_known_to_be_longer(limit: int) -> None:
    """Exponential lengths of mean 300: the expected share beyond the limit is right."""
    rng = np.random.default_rng(4)
    row = around(np.array([5.0]), 0.8)[0]
    cut, uncut = Adapter(), Adapter()
    for length in np.ceil(rng.exponential(300.0, 1500)).astype(int).tolist():
        cut.observe("m", row, min(length, limit), censored=length > limit)
        uncut.observe("m", row, min(length, limit))
    tokens = limit * np.array([0.5, 1.0, 1.5])
    believed, dragged = (
        1.0 - np.interp(tokens, EDGES[1:], np.cumsum(adapter.adjust("m", row))[:-1])
        for adapter in (cut, uncut)
    )
    assert believed[:2] == pytest.approx(np.exp(-tokens[:2] / 300.0), abs=0.05)
    assert quantiles(cut.adjust("m", row)[None, :], (0.5,)) > 120.0
    assert dragged[2] < 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_cut_anywhere_do_not_drag_lengths_down(seed: int) -> None:
    """Exponential lengths of mean 300, half of them cut by exponential limits of the same mean."""
    rng = np.random.default_rng(seed)
    row = around(np.array([5.0]), 0.8)[0]
    adapter = Adapter()
    lengths, limits = np.ceil(rng.exponential(300.0, (2, 1500))).astype(int).tolist()
    for length, limit in zip(lengths, limits, strict=True):
        adapter.observe("m", row, min(length, limit), censored=length > limit)
    found = quantiles(adapter.adjust("m", row)[None, :], (0.25, 0.5, 0.75))[0]
    assert found == pytest.approx(-300.0 * np.log([0.75, 0.5, 0.25]), rel=0.2)


def test_an_answer_cut_at_its_first_token_says_nothing_of_its_length() -> None:
    rows = bases(1, np.random.default_rng(5))
    adapter = Adapter()
    adapter.observe("m", rows[0], 1, censored=True)
    moved = quantiles(adapter.adjust("m", rows), (0.5,)) / quantiles(rows, (0.5,))
    assert moved[0, 0] == pytest.approx(1.0, abs=0.05)


def test_an_answer_without_a_token_is_not_observed() -> None:
    rows = bases(1, np.random.default_rng(5))
    adapter = Adapter()
    adapter.observe("m", rows[0], 0)
    assert np.array_equal(adapter.adjust("m", rows), rows)


def test_a_model_whose_answers_change_is_followed() -> None:
    rng = np.random.default_rng(6)
    rows = bases(1, rng)[[0] * 4500]
    tokens = draw(rows, rng)
    adapter = learn(Adapter(), rows[:2000], tokens[:2000])
    learn(adapter, rows[2000:], tokens[2000:] * 4)
    median = quantiles(adapter.adjust("m", rows[:1]), (0.5,))[0, 0]
    assert median == pytest.approx(4 * np.median(tokens), rel=0.2)


def test_the_model_and_the_group_observed_least_recently_are_forgotten() -> None:
    rows = bases(1, np.random.default_rng(7))
    adapter = Adapter(max_models=2, max_groups=2)
    for model in ("a", "b", "a", "c"):
        adapter.observe(model, rows[0], 7)
    assert np.array_equal(adapter.adjust("b", rows), rows)
    assert not np.array_equal(adapter.adjust("a", rows), rows)
    for group in ("g", "h", "g", "i"):
        adapter.observe("a", rows[0], 7, group=group)
    without = adapter.adjust("a", rows)
    assert np.array_equal(adapter.adjust("a", rows, "h"), without)
    assert not np.array_equal(adapter.adjust("a", rows, "g"), without)
    with pytest.raises(ValueError, match="must be positive"):
        Adapter(max_models=0)


def test_the_same_observations_make_the_same_distributions() -> None:
    rng = np.random.default_rng(8)
    rows = bases(100, rng)
    tokens = draw(rows, rng)
    first, second = (learn(Adapter(), rows, tokens, group="g") for _ in range(2))
    assert np.array_equal(first.adjust("m", rows, "g"), second.adjust("m", rows, "g"))
