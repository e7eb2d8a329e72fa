"""A slow phase is forgotten when it is over; an engine that is always slow stays known as slow."""

import math
import random

import pytest

from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape
from tests.sweeps import cases

ENGINE = LinearStepTime((8e-3, 60e-6, 20e-9, 100e-6, 100e-6, 200e-9))
NEW_REQUEST = BatchShape(1, 60, 60 * 61 // 2, 0, 0)
DECODE = BatchShape(0, 0, 0, 1, 60)
PROBES = (NEW_REQUEST, DECODE)
pytestmark = pytest.mark.sweep
SEEDS = range(cases(3, 1))


def busy(
    model: OnlineStepTime,
    rng: random.Random,
    seconds: float,
    slowdown: float = 1.0,
    longest_prompt: int = 400,
) -> None:
    """Observe steps of a small engine for `seconds`, each `slowdown` times as long as usual."""
    end_s = 0.0
    while end_s < seconds:
        prompt = rng.randint(20, longest_prompt) if rng.random() < 0.2 else 0
        decodes = rng.randint(1, 12)
        shape = BatchShape(
            prefill_seqs=bool(prompt),
            prefill_tokens=prompt,
            prefill_pairs=prompt * (prompt + 1) // 2,
            decode_seqs=decodes,
            decode_pairs=decodes * rng.randint(50, 300),
        )
        duration_s = ENGINE.step_s(shape) * slowdown * math.exp(rng.gauss(0.0, 0.1))
        model.observe(shape, duration_s)
        end_s += duration_s


def slowness(model: OnlineStepTime) -> list[float]:
    """Predicted over usual times of steps that an idle engine gets."""
    return [model.step_s(shape) / ENGINE.step_s(shape) for shape in PROBES]


@pytest.mark.parametrize("slowdown", [2.0, 10.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_phase_is_forgotten_within_some_times_its_length(seed: int, slowdown: float) -> None:
    rng, model = random.Random(seed), OnlineStepTime()
    busy(model, rng, 60.0)
    busy(model, rng, 5.0, slowdown)
    assert min(slowness(model)) > slowdown**0.5  # the model followed it
    model.rest(5.0)
    assert max(slowness(model)) < slowdown**0.75
    model.rest(40.0)
    assert max(slowness(model)) < 1.3 * slowdown**0.1
    assert min(slowness(model)) > 0.8


@pytest.mark.parametrize("seed", SEEDS)
def test_it_does_not_matter_how_often_it_is_told_to_rest(seed: int) -> None:
    believed = []
    for times in (1, 40):
        rng, model = random.Random(seed), OnlineStepTime()
        busy(model, rng, 60.0)
        busy(model, rng, 5.0, 4.0)
        for _ in range(times):
            model.rest(20.0 / times)
        believed.append(slowness(model))
    assert believed[0] == pytest.approx(believed[1])


@pytest.mark.parametrize("slowdown", [0.5, 2.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_that_always_was_so_stays_known_to_be(seed: int, slowdown: float) -> None:
    rng, model = random.Random(seed), OnlineStepTime(ENGINE)
    for _ in range(6):
        busy(model, rng, 5.0, slowdown)
        model.rest(60.0)
    assert slowness(model) == pytest.approx([slowdown] * 2, rel=0.2)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_that_became_slow_is_believed_as_long_again_as_it_was_seen(seed: int) -> None:
    rng, model = random.Random(seed), OnlineStepTime()
    busy(model, rng, 60.0)
    busy(model, rng, 30.0, 2.0)
    model.rest(3.0)  # a tenth of the time
    assert slowness(model) == pytest.approx([2.0] * 2, rel=0.2)
    busy(model, rng, 45.0, 2.0)  # longer than it was fast
    model.rest(600.0)
    assert slowness(model) == pytest.approx([2.0] * 2, rel=0.2)


@pytest.mark.parametrize("seed", SEEDS)
def test_shapes_that_are_new_are_no_phase(seed: int) -> None:
    """Long prompts arrive that a wrong prior takes for cheap: this is learnt, and stays."""
    rng = random.Random(seed)
    cheap = LinearStepTime((8e-3, 6e-6, 2e-9, 10e-6, 100e-6, 200e-9))
    model = OnlineStepTime(cheap, prior_error=3.0)
    busy(model, rng, 20.0, longest_prompt=20)
    long = BatchShape(1, 2000, 2000 * 2001 // 2, 4, 800)
    for _ in range(60):
        model.observe(long, ENGINE.step_s(long) * math.exp(rng.gauss(0.0, 0.1)))
    before = model.step_s(long), model.step_s(DECODE)
    model.rest(600.0)
    assert model.step_s(long) == pytest.approx(ENGINE.step_s(long), rel=0.25), before
    assert model.step_s(DECODE) == pytest.approx(ENGINE.step_s(DECODE), rel=0.25), before


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_rest_steps_say_soon_whether_it_is_still_slow(seed: int) -> None:
    for slowdown in (1.0, 4.0):
        rng, model = random.Random(seed), OnlineStepTime()
        busy(model, rng, 60.0)
        busy(model, rng, 5.0, 4.0)
        model.rest(10.0)
        busy(model, rng, 0.5 * slowdown, slowdown)  # about 50 steps
        assert slowness(model) == pytest.approx([slowdown] * 2, rel=0.35)
