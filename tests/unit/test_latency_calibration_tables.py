"""Online calibration that starts with a profile's tables."""

import math
import random
from collections.abc import Callable

import pytest

from foretell.config import load_profile
from foretell.kernel.step_time import TABLES_SCALE
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.latency.tables import TabularStepTime, profile_step_time
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs
from tests.sweeps import cases

PROFILE = load_profile("RTXPRO6000/Llama-3.1-8B")
TABLES = profile_step_time(PROFILE)
pytestmark = pytest.mark.sweep
SEEDS = range(cases(5, 2))
Truth = Callable[[BatchShape], float]


def tables_scale(model: StepTimeModel) -> float:
    """The factor on the tables' times; 0 if there are no tables."""
    return float(model.packed().coefficients[TABLES_SCALE])


def random_shape(rng: random.Random, prefill_ratio: float) -> BatchShape:
    """A step of 1 to 128 decodes, some with a prefill chunk."""
    decodes = rng.randint(1, 128)
    pairs = decodes * rng.randint(50, 2000)
    if rng.random() >= prefill_ratio:
        return BatchShape(decode_seqs=decodes, decode_pairs=pairs)
    query, computed = rng.randint(1, 1500), rng.choice((0, 0, 512, 1024))
    return BatchShape(1, query, prefill_pairs(query, computed), decodes, pairs)


def drive(
    model: OnlineStepTime,
    truth: Truth,
    rng: random.Random,
    steps: int,
    prefill_ratio: float = 0.3,
    noise: float = 0.03,
) -> None:
    for _ in range(steps):
        shape = random_shape(rng, prefill_ratio)
        model.observe(shape, truth(shape) * math.exp(rng.gauss(0.0, noise)))


def error(model: StepTimeModel, truth: Truth, prefill_ratio: float = 0.3) -> float:
    """Mean relative error of the model against the noiseless engine."""
    rng = random.Random(999)
    shapes = [random_shape(rng, prefill_ratio) for _ in range(200)]
    return sum(abs(model.step_s(s) / truth(s) - 1.0) for s in shapes) / len(shapes)


def engine(scale: float, overhead_s: float = 0.0) -> Truth:
    """An engine like the tables, with another clock rate and time of the host."""
    return lambda shape: overhead_s + scale * TABLES.step_s(shape)


def test_it_starts_as_the_tables_and_stays_them_on_the_engine_they_describe() -> None:
    model = OnlineStepTime(PROFILE)
    assert error(model, engine(1.0)) < 1e-9
    assert OnlineStepTime(TABLES).coefficients_s == model.coefficients_s
    drive(model, engine(1.0), random.Random(0), 1000)
    assert error(model, engine(1.0)) < 0.01
    assert tables_scale(model.current()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("scale", [0.3, 0.8, 1.3, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_clock_scales_all(seed: int, scale: float) -> None:
    """Only decodes are seen; the time of prefill is scaled with them."""
    model = OnlineStepTime(PROFILE)
    drive(model, engine(scale), random.Random(seed), 150, prefill_ratio=0.0)
    assert error(model, engine(scale), prefill_ratio=0.0) < 0.02
    assert error(model, engine(scale), prefill_ratio=1.0) < 0.10


@pytest.mark.parametrize("overhead_s", [0.5e-3, 3e-3, 20e-3])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_overhead_is_learnt_beside_the_tables(seed: int, overhead_s: float) -> None:
    truth, model = engine(1.1, overhead_s), OnlineStepTime(PROFILE)
    drive(model, truth, random.Random(seed), 200)
    assert error(model, truth) < 0.04
    drive(model, truth, random.Random(seed + 100), 2000)
    assert error(model, truth) < 0.015


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_beat_six_coefficients_where_they_are_right(seed: int) -> None:
    truth = engine(1.2, 1e-3)
    tabular, linear = (
        OnlineStepTime(PROFILE),
        OnlineStepTime(LinearStepTime(PROFILE.coefficients_s)),
    )
    for model in (tabular, linear):
        drive(model, truth, random.Random(seed), 2000)
    assert error(tabular, truth) < 0.3 * error(linear, truth)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_engine_unlike_its_tables_is_learnt_all_the_same(seed: int) -> None:
    """A GPU's tables, but steps of a machine with slow prefill and fast decodes."""
    other = LinearStepTime((8e-3, 400e-6, 30e-9, 200e-6, 90e-6, 20e-9))
    model = OnlineStepTime(PROFILE)
    drive(model, other.step_s, random.Random(seed), 1000)
    assert error(model, other.step_s) < 0.06


@pytest.mark.parametrize("seed", SEEDS)
def test_it_recovers_from_a_change_and_counts_it(seed: int) -> None:
    rng, model = random.Random(seed), OnlineStepTime(PROFILE)
    drive(model, engine(1.0, 1e-3), rng, 1000)
    before = model.changes
    drive(model, engine(2.0, 2e-3), rng, 200)
    assert model.changes > before
    assert error(model, engine(2.0, 2e-3)) < 0.05


def test_changes_by_chance_are_rare() -> None:
    model = OnlineStepTime(PROFILE)
    drive(model, engine(1.0), random.Random(7), 200)  # the first steps may count as changes
    before = model.changes
    drive(model, engine(1.0), random.Random(8), 5000)
    assert model.changes - before < 20


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_steps_it_stays_sane(seed: int) -> None:
    rng, model = random.Random(seed), OnlineStepTime(PROFILE)
    for _ in range(500):
        model.observe(random_shape(rng, 0.5), 10 ** rng.uniform(-9, 5))
        learnt = model.current()
        assert min(*learnt.coefficients_s, tables_scale(learnt)) >= 0
        assert 0 < model.step_s(random_shape(rng, 0.5)) < math.inf
    drive(model, engine(1.0), rng, 400)
    assert error(model, engine(1.0)) < 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_that_were_of_no_use_are_believed_again(seed: int) -> None:
    rng, model = random.Random(seed), OnlineStepTime(PROFILE)
    constant = BatchShape(decode_seqs=1, decode_pairs=50)
    drive(model, lambda _: TABLES.step_s(constant), rng, 2000)
    assert tables_scale(model.current()) < 0.05
    drive(model, engine(1.0), rng, 1000)
    assert error(model, engine(1.0)) < 0.05
    assert tables_scale(model.current()) > 0.5


def test_what_was_learnt_is_frozen_and_packed() -> None:
    model = OnlineStepTime(PROFILE)
    drive(model, engine(1.5, 2e-3), random.Random(0), 100)
    frozen = model.current()
    assert model.packed() is frozen.packed()
    assert frozen.packed() is frozen.packed()
    shape = random_shape(random.Random(1), 1.0)
    before = frozen.step_s(shape)
    drive(model, engine(3.0), random.Random(0), 100)
    assert frozen.step_s(shape) == before
    assert model.current() is not frozen
    decode = BatchShape(decode_seqs=9, decode_pairs=9 * 700)
    total = sum(
        frozen.step_s(BatchShape(decode_seqs=9, decode_pairs=9 * (700 + i))) for i in range(900)
    )
    assert frozen.decode_run_s(decode, 900) == pytest.approx(total, rel=1e-9)


def test_the_spread_tells_a_noisy_engine_from_a_steady_one() -> None:
    spreads = []
    for noise in (0.02, 0.3):
        model = OnlineStepTime(PROFILE)
        assert model.spread(1) > 0.3
        drive(model, engine(1.1, 1e-3), random.Random(5), 3000, noise=noise)
        spreads.append((model.spread(1), model.spread(100)))
    steady, noisy = spreads
    assert steady[0] < 0.05
    assert noisy[0] > 0.2
    assert noisy[1] < noisy[0] / 2


def test_tables_are_packed_once() -> None:
    assert PROFILE.tables is not None
    model = TabularStepTime(PROFILE.tables)
    assert model.packed() is model.packed()
    online = OnlineStepTime(model)
    assert online.packed().values is model.packed().values
