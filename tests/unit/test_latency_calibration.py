"""Online calibration: what it learns, how fast, and what it must withstand."""

import math
import random

import pytest

from foretell.latency.calibration import OnlineStepTime
from foretell.latency.features import FEATURES
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape, GpuProfile
from foretell.model.batch import prefill_pairs
from tests.sweeps import cases

TRUTH = LinearStepTime((8e-3, 40e-6, 3e-9, 200e-6, 90e-6, 200e-9))
pytestmark = pytest.mark.sweep
SEEDS = range(cases(8, 2))


def random_shape(rng: random.Random, prefill_ratio: float) -> BatchShape:
    """A step of 1 to 48 decodes, some with a prefill chunk."""
    decodes = rng.randint(1, 48)
    pairs = decodes * rng.randint(50, 2000)
    if rng.random() >= prefill_ratio:
        return BatchShape(decode_seqs=decodes, decode_pairs=pairs)
    query, computed = rng.randint(1, 512), rng.choice((0, 0, 512, 1024))
    return BatchShape(1, query, prefill_pairs(query, computed), decodes, pairs)


def drive(
    model: OnlineStepTime,
    rng: random.Random,
    steps: int,
    *,
    prefill_ratio: float = 0.3,
    slowdown: float = 1.0,
    noise: float = 0.05,
    stall_ratio: float = 0.0,
) -> None:
    """Feed `steps` noisy steps of an engine that is TRUTH times `slowdown`."""
    for _ in range(steps):
        shape = random_shape(rng, prefill_ratio)
        seconds = TRUTH.step_s(shape) * slowdown * math.exp(rng.gauss(0.0, noise))
        if rng.random() < stall_ratio:
            seconds *= rng.uniform(5.0, 50.0)
        model.observe(shape, seconds)


def error(model: OnlineStepTime, prefill_ratio: float = 0.3, slowdown: float = 1.0) -> float:
    """Mean relative error of the model against the noiseless engine."""
    rng = random.Random(999)
    shapes = [random_shape(rng, prefill_ratio) for _ in range(200)]
    truth = [TRUTH.step_s(s) * slowdown for s in shapes]
    return sum(abs(model.step_s(s) - t) / t for s, t in zip(shapes, truth, strict=True)) / 200


@pytest.mark.parametrize("seed", SEEDS)
def test_recovers_known_coefficients_from_noisy_steps(seed: int) -> None:
    model = OnlineStepTime()
    drive(model, random.Random(seed), 4000)
    learnt = model.current().coefficients_s
    assert error(model) < 0.02
    # The coefficients that traffic excites strongly: step, prefill token, decode pair.
    for i in (0, 1, 5):
        assert learnt[i] == pytest.approx(TRUTH.coefficients_s[i], rel=0.15), FEATURES[i]


@pytest.mark.parametrize("seed", SEEDS)
def test_learns_from_nothing_within_tens_of_steps(seed: int) -> None:
    model = OnlineStepTime()
    assert error(model) > 0.1
    drive(model, random.Random(seed), 60)
    assert error(model) < 0.08


@pytest.mark.parametrize("seed", SEEDS)
def test_decode_alone_corrects_prefill_by_the_common_factor(seed: int) -> None:
    prior = LinearStepTime(tuple(c / 2 for c in TRUTH.coefficients_s))
    model = OnlineStepTime(prior)
    assert error(model, prefill_ratio=1.0) == pytest.approx(0.5)
    drive(model, random.Random(seed), 100, prefill_ratio=0.0)
    assert error(model, prefill_ratio=1.0) < 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_long_decode_does_not_forget_prefill(seed: int) -> None:
    rng, model = random.Random(seed), OnlineStepTime()
    drive(model, rng, 1000)
    drive(model, rng, 4000, prefill_ratio=0.0)
    assert error(model, prefill_ratio=1.0) < 0.05


@pytest.mark.parametrize("slowdown", [10.0, 2.0, 1.3, 0.5, 0.1])
@pytest.mark.parametrize("seed", SEEDS)
def test_recovers_from_a_change_of_speed(seed: int, slowdown: float) -> None:
    rng, model = random.Random(seed), OnlineStepTime(TRUTH)
    drive(model, rng, 1000)
    drive(model, rng, 200, slowdown=slowdown)
    assert error(model, slowdown=slowdown) < 0.06


@pytest.mark.parametrize("seed", SEEDS)
def test_stalls_teach_little(seed: int) -> None:
    rng, model = random.Random(seed), OnlineStepTime(TRUTH)
    drive(model, rng, 2000, stall_ratio=0.02)
    assert error(model) < 0.06


def test_one_stall_barely_moves_a_settled_model() -> None:
    model = OnlineStepTime(TRUTH)
    drive(model, random.Random(0), 1000)
    shape = BatchShape(decode_seqs=16, decode_pairs=16_000)
    before = model.step_s(shape)
    model.observe(shape, before * 100)
    # Without clipping, the error of 0.99 would move it several times as far at this gain.
    assert before < model.step_s(shape) < before * 1.02


@pytest.mark.parametrize("duration_s", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_durations_that_are_no_time_are_ignored(duration_s: float) -> None:
    model = OnlineStepTime(TRUTH)
    before = model.current()
    model.observe(BatchShape(decode_seqs=1, decode_pairs=10), duration_s)
    model.observe(BatchShape(), 0.01)
    assert model.steps == 0
    assert model.current() is before


@pytest.mark.parametrize("seed", SEEDS)
def test_survives_absurd_steps(seed: int) -> None:
    """For any durations, predictions stay positive and finite, and the model can still learn."""
    rng, model = random.Random(seed), OnlineStepTime()
    for _ in range(1000):
        model.observe(random_shape(rng, 0.5), 10 ** rng.uniform(-9, 5))
        seconds = model.step_s(random_shape(rng, 0.5))
        assert math.isfinite(seconds)
        assert seconds > 0
        assert all(c >= 0 and math.isfinite(c) for c in model.current().coefficients_s)
    drive(model, rng, 400)
    assert error(model) < 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_never_negative_outside_what_was_seen(seed: int) -> None:
    """Few, collinear, noisy decodes: predictions beyond them must not get faster with more work."""
    rng, model = random.Random(seed), OnlineStepTime()
    for _ in range(300):
        decodes = rng.randint(30, 34)
        shape = BatchShape(decode_seqs=decodes, decode_pairs=decodes * 500)
        model.observe(shape, 0.02 * math.exp(rng.gauss(0.0, 0.3)))
    assert min(model.current().coefficients_s) >= 0
    assert model.step_s(BatchShape(decode_seqs=32, decode_pairs=16_000)) == pytest.approx(
        0.02, rel=0.25
    )


def test_reports_its_error_and_its_steps() -> None:
    model = OnlineStepTime(TRUTH, prior_error=0.4)
    assert (model.steps, model.relative_error) == (0, 0.4)
    drive(model, random.Random(1), 500, noise=0.1)
    assert model.steps == 500
    assert 0.05 < model.relative_error < 0.15


def test_same_steps_same_model() -> None:
    models = [OnlineStepTime(), OnlineStepTime()]
    for model in models:
        drive(model, random.Random(3), 200)
    assert models[0].coefficients_s == models[1].coefficients_s


def test_snapshot_is_frozen_and_shared_until_the_next_step() -> None:
    model = OnlineStepTime(TRUTH)
    first = model.current()
    assert model.current() is first
    before = first.coefficients_s
    drive(model, random.Random(0), 5)
    assert first.coefficients_s == before
    assert model.current() is not first


def test_takes_a_profile_as_prior_and_refuses_nonsense() -> None:
    profile = GpuProfile("d/m", TRUTH.coefficients_s, 0.05, "test")
    assert OnlineStepTime(profile).current().coefficients_s == pytest.approx(TRUTH.coefficients_s)
    with pytest.raises(ValueError, match="forgetting"):
        OnlineStepTime(forgetting=0.0)
    with pytest.raises(ValueError, match="coefficients"):
        OnlineStepTime(GpuProfile("d/m", (1.0,), 0.05, "test"))
    with pytest.raises(ValueError, match="prior_error"):
        OnlineStepTime(prior_error=0.0)
