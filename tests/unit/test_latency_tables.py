"""Step time from tables, and tables as JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from foretell.config import list_profiles, load_profile
from foretell.kernel import tables as kernel
from foretell.latency.linear import LinearStepTime
from foretell.latency.profile_json import profile_from_json, profile_to_json
from foretell.latency.tables import TabularStepTime, _alone, curve_s, graph_sizes, profile_step_time
from foretell.model import BatchShape, Curve, GpuProfile, Grid, StepTables
from foretell.model.batch import prefill_pairs
from tests.sim.recorded import ranks_step_s

TABLES = StepTables(
    tokens=Curve((1, 8, 100), (1e-3, 1.5e-3, 10e-3)),
    sequences=Curve((1, 4, 64), (1e-4, 1e-4, 5e-4)),
    prefill=Grid(((16, 128), (0, 512)), (1e-4, 3e-4, 8e-4, 20e-4)),
    decode=Grid(
        ((1, 8, 64), (16, 64, 1024)), tuple(i * 1e-4 for i in (1, 1, 4, 2, 3, 9, 8, 9, 50))
    ),
)
PROFILE = GpuProfile("d/m", (1e-3,) * 6, 0.05, "made up", tables=TABLES)


def grid_s(grid: Grid, at: Sequence[float]) -> float:
    """Seconds of `grid`, of two or four axes, at a point with one value per axis."""
    look_up = kernel.grid2_s if len(grid.axes) == 2 else kernel.grid4_s
    return look_up(*_alone(grid), kernel.TOKENS, *map(float, at))


def test_a_curve_is_linear_between_its_points_and_proportional_beyond() -> None:
    curve = Curve((2, 4), (1.0, 3.0))
    assert [curve_s(curve, x) for x in (0, 2, 3, 4, 8)] == [1.0, 1.0, 2.0, 3.0, 6.0]


def test_a_grid_is_multilinear() -> None:
    grid = Grid(((0, 10), (0, 1, 2)), (0.0, 1.0, 3.0, 10.0, 11.0, 13.0))
    assert grid_s(grid, (0, 0)) == 0.0
    assert grid_s(grid, (10, 2)) == 13.0
    assert grid_s(grid, (5, 1.5)) == pytest.approx(5.0 + 2.0)
    assert grid_s(grid, (-3, -3)) == 0.0
    assert grid_s(grid, (20, 4)) == pytest.approx(20.0 + 7.0)


def test_lone_points_hold_and_a_lone_point_of_a_curve_is_in_proportion() -> None:
    assert [curve_s(Curve((4,), (2.0,)), x) for x in (1, 4, 6, 40)] == [2.0, 2.0, 3.0, 20.0]
    grid = Grid(((3,), (0, 2)), (1.0, 2.0))
    assert [grid_s(grid, (x, 1)) for x in (0, 3, 3.5, 100)] == [1.5] * 4
    lone = Grid(((1,), (1,), (1,), (1, 2)), (1.0, 2.0))
    assert grid_s(lone, (9, 9, 9, 1.25)) == 1.25


def test_a_grid_never_falls_below_zero() -> None:
    falling = Grid(((1, 2), (1, 2)), (3.0, 1.0, 3.0, 1.0))
    assert grid_s(falling, (1, 2.25)) == 0.5
    assert grid_s(falling, (1, 9)) == 0.0


def test_a_grid_may_have_four_axes() -> None:
    axes = ((0.0, 1.0),) * 4
    grid = Grid(axes, tuple(8.0 * a + 4 * b + 2 * c + d for a, b, c, d in _corners()))
    assert grid_s(grid, (0.5, 0.25, 1.0, 0.75)) == pytest.approx(4.0 + 1.0 + 2.0 + 0.75)


def _corners() -> list[tuple[int, int, int, int]]:
    return [(i >> 3 & 1, i >> 2 & 1, i >> 1 & 1, i & 1) for i in range(16)]


def test_a_step_is_the_sum_of_its_parts() -> None:
    model = TabularStepTime(TABLES)
    shape = BatchShape(1, 92, prefill_pairs(92, 256), 8, 8 * 64)
    prefill = grid_s(TABLES.prefill, (92, 256))
    assert model.step_s(shape) == pytest.approx(
        10e-3 + curve_s(TABLES.sequences, 9) + prefill + 3e-4
    )
    # Two chunks cost twice the attention of their mean.
    two = BatchShape(2, 92, 2 * prefill_pairs(46, 256))
    attention = 2 * grid_s(TABLES.prefill, (46, 256))
    assert model.step_s(two) == pytest.approx(curve_s(TABLES.tokens, 92) + 1e-4 + attention)


def test_mixed_attention_takes_the_place_of_one_chunk_and_the_decodes() -> None:
    mixed = Grid(((16, 128), (0, 512), (1, 8), (16, 1024)), (7e-3,) * 16)
    model = TabularStepTime(replace(TABLES, mixed=mixed))
    shape = BatchShape(2, 40, 2 * prefill_pairs(20, 0), 4, 400)
    parts = curve_s(TABLES.tokens, 44) + curve_s(TABLES.sequences, 6)
    assert model.step_s(shape) == pytest.approx(parts + 7e-3 + grid_s(TABLES.prefill, (20, 0)))


def test_draft_tokens_are_tokens_without_attention_of_their_own() -> None:
    model, plain = TabularStepTime(TABLES), BatchShape(decode_seqs=8, decode_pairs=8 * 64)
    more = curve_s(TABLES.tokens, 32) - curve_s(TABLES.tokens, 8)
    drafted = replace(plain, draft_tokens=24)
    assert model.step_s(drafted) - model.step_s(plain) == pytest.approx(more)


def test_small_steps_are_padded_to_a_graph() -> None:
    model = TabularStepTime(replace(TABLES, graph_sizes=(8, 16)))
    three, eight = (BatchShape(decode_seqs=n, decode_pairs=n * 16) for n in (3, 8))
    plain = TabularStepTime(TABLES)
    assert model.step_s(eight) == plain.step_s(eight)
    assert model.step_s(three) - plain.step_s(three) == pytest.approx(
        1.5e-3 - curve_s(TABLES.tokens, 3)
    )
    assert graph_sizes(3) == (1, 2, 4)
    assert graph_sizes(128)[-1] == 256
    assert graph_sizes(4096)[-1] == 512


@pytest.mark.parametrize("steps", [1, 2, 17, 300, 5000])
@pytest.mark.parametrize("pairs", [7 * 5, 7 * 60 + 3, 7 * 900, 7 * 3000])
def test_a_decode_run_is_the_sum_of_its_steps(steps: int, pairs: int) -> None:
    model = TabularStepTime(replace(TABLES, graph_sizes=(8,), overhead_s=1e-4))
    total = sum(model.step_s(BatchShape(0, 0, 0, 7, pairs + 7 * i)) for i in range(steps))
    run = model.decode_run_s(BatchShape(0, 0, 0, 7, pairs), steps)
    assert run == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("name", list_profiles())
def test_a_decode_run_of_a_shipped_profile_is_the_sum_of_its_steps(name: str) -> None:
    model = profile_step_time(load_profile(name))
    assert isinstance(model, TabularStepTime)
    shape = BatchShape(0, 0, 0, 37, 37 * 411)
    total = sum(model.step_s(BatchShape(0, 0, 0, 37, 37 * (411 + i))) for i in range(700))
    assert model.decode_run_s(shape, 700) == pytest.approx(total, rel=1e-9)


def test_ranks_wait_for_the_slowest_and_share_the_rest() -> None:
    model = TabularStepTime(replace(TABLES, ranks=Curve((1, 101), (0.0, 1.0))))
    busy = BatchShape(1, 101, prefill_pairs(101, 0))
    idle = BatchShape()
    alone = TabularStepTime(TABLES)
    assert model.step_s(busy) == pytest.approx(alone.step_s(busy) + 1.0)
    assert ranks_step_s(model, [busy, idle]) == pytest.approx(alone.step_s(busy) + 0.495)


@pytest.mark.parametrize(
    "broken",
    [
        replace(TABLES, tokens=Curve((2, 1), (1.0, 1.0))),
        replace(TABLES, sequences=Curve((1, 2), (1.0,))),
        replace(TABLES, prefill=Grid(((1,),), (1.0,))),
        replace(TABLES, decode=Grid(((1,), ()), ())),
        replace(TABLES, ranks=Curve((1,), (-1.0,))),
        replace(TABLES, tokens=Curve((-1, 0), (1.0, 1.0))),
        replace(TABLES, mixed=TABLES.decode),
    ],
)
def test_broken_tables_are_refused(broken: StepTables) -> None:
    with pytest.raises(ValueError, match="table"):
        TabularStepTime(broken)


def test_a_profile_without_tables_is_linear() -> None:
    assert isinstance(profile_step_time(PROFILE), TabularStepTime)
    assert isinstance(profile_step_time(replace(PROFILE, tables=None)), LinearStepTime)


def test_profiles_survive_json() -> None:
    ranks = replace(PROFILE, tables=replace(TABLES, ranks=Curve((1,), (2e-3,)), graph_sizes=(1, 2)))
    mixed = Grid(((1,), (1,), (1,), (1, 2)), (1e-3, 2e-3))
    for profile in (
        PROFILE,
        ranks,
        replace(PROFILE, tables=replace(TABLES, mixed=mixed, overhead_s=3e-6)),
        replace(PROFILE, tables=None),
    ):
        again = profile_from_json(json.loads(json.dumps(profile_to_json(profile))))
        assert profile_to_json(again) == profile_to_json(profile)
        assert (again.tables is None) == (profile.tables is None)
        shape = BatchShape(1, 50, prefill_pairs(50, 9), 4, 999)
        expected = profile_step_time(profile).step_s(shape)
        assert profile_step_time(again).step_s(shape) == pytest.approx(expected, rel=1e-3)


def test_json_of_version_one_is_still_read() -> None:
    old = {"name": "a/b", "coefficients_s": [1.0] * 6, "relative_residual": 0.1, "provenance": "x"}
    assert profile_from_json(old).tables is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 4},
        {"version": "two"},
        {"coefficients_s": [1.0]},
        {"nonsense": 1},
        {"tables": {}},
    ],
)
def test_json_that_is_no_profile_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="profile"):
        profile_from_json({**profile_to_json(PROFILE), **change})


def test_shipped_profiles_are_small() -> None:
    for name in list_profiles():
        assert len(json.dumps(profile_to_json(load_profile(name)))) < 60_000, name
