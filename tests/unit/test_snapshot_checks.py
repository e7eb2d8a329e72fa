"""Which messages of predictors are refused, and how messages of other versions are read."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from foretell.engine.published import SnapshotError, check
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.kernel.layout import INPUT
from foretell.latency.tables import NO_TABLES
from foretell.length.distribution import knots
from foretell.tools.harness.cases import Size, make_case
from foretell.v1 import predictor_pb2
from foretell.wire.published import VERSION, MessageReader
from tests.unit.followed import (
    bytes_of,
    followed,
    illustrated,
    new_predictor,
    new_request,
    predicted,
    sent,
    tables_of,
)


def with_values(column: predictor_pb2.Column, values: list[float]) -> None:
    kinds = ("<f8", "<i8", "<i4")
    column.values = np.resize(np.array(values, kinds[column.kind]), _count(column)).tobytes()


def _count(column: predictor_pb2.Column) -> int:
    return len(column.values) // (4 if column.kind == predictor_pb2.Column.INT32 else 8)


def test_false_snapshots_are_refused_with_a_reason() -> None:
    predictor, _, now_s = followed(SnapshotCache(knots))

    def refused(why: str, change: Callable[[predictor_pb2.Snapshot], object]) -> None:
        message = bytes_of(predictor, now_s)
        change(message.snapshot)
        with pytest.raises(SnapshotError, match=why):
            MessageReader(tables_of, NO_TABLES).read(message)

    def column(name: str, values: list[float]) -> Callable[[predictor_pb2.Snapshot], None]:
        def change(snapshot: predictor_pb2.Snapshot) -> None:
            (found,) = (c for c in snapshot.requests.columns if c.name == name)
            with_values(found, values)

        return change

    def added(name: str, value: float) -> Callable[[predictor_pb2.Snapshot], None]:
        def change(snapshot: predictor_pb2.Snapshot) -> None:
            values = np.full(snapshot.requests.rows, value, "<f8").tobytes()
            snapshot.requests.columns.add(name=name, width=1, values=values)

        return change

    def set_to(field: str, value: object) -> Callable[[predictor_pb2.Snapshot], None]:
        return lambda snapshot: setattr(snapshot, field, value)

    refused("version", set_to("version", VERSION + 2))
    refused("time", set_to("taken_unix_s", float("inf")))
    refused("time", set_to("dispatch_delay_s", -1.0))
    refused("count", set_to("running", 1000))
    refused("count", lambda snapshot: setattr(snapshot.requests, "rows", 10**9))
    refused("blocks", set_to("free_blocks", 2**32 - 1))
    refused("online", set_to("online_ttft_s", float("nan")))
    refused("online", set_to("usual_online_blocks", float("inf")))
    refused("size", lambda snapshot: setattr(snapshot.requests, "rows", 3))
    refused("length", column("length", [float("nan")]))
    refused("length", column("length", [9.0, 3.0]))
    refused("prompt", column("prompt", [-1]))
    refused("targets", added("tpot_target_s", -1.0))
    refused("targets", added("tpot_target_s", float("inf")))
    refused("step_time", lambda snapshot: snapshot.ClearField("step_time"))
    refused("step_time", lambda snapshot: snapshot.step_time.__setitem__(0, float("nan")))
    refused("inputs", set_to("contents", 3))


def test_columns_of_other_versions_are_ignored_or_defaulted() -> None:
    """A newer writer has more columns, an older one fewer; integers may have another width."""
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    before = predicted(cache, new_request(), now_s)
    message = bytes_of(predictor, now_s)
    snapshot = message.snapshot
    snapshot.version = VERSION + 1
    snapshot.requests.columns.add(name="new", kind=1, width=2, values=b"whatever it means")
    snapshot.step_time.append(7.0)
    for column in snapshot.requests.columns:
        if column.name == "prompt":
            values = np.frombuffer(column.values, "<i4").astype("<i8")
            column.kind, column.values = predictor_pb2.Column.INT64, values.tobytes()
    read = MessageReader(tables_of, NO_TABLES).read(message)
    engine.hear(read, now_s)
    assert predicted(cache, new_request(), now_s) == before
    older = bytes_of(predictor, now_s)
    older.snapshot.version = VERSION - 1
    kept = [c for c in older.snapshot.requests.columns if c.name != "cached_tokens"]
    del older.snapshot.requests.columns[:]
    older.snapshot.requests.columns.extend(kept)
    engine.hear(MessageReader(tables_of, NO_TABLES).read(older), now_s)
    assert predicted(cache, new_request(), now_s)[0].load == before[0].load


def test_false_inputs_are_refused() -> None:
    case = make_case(Size(4, 9), 0, async_scheduling=True)
    predictor, now_s = new_predictor(illustrated(case.snapshot)), case.snapshot.taken_unix_s
    message = sent(predictor, now_s)
    assert message.snapshot is not None
    rows = np.frombuffer(message.snapshot.inputs, INPUT)
    assert len(rows) == 17
    check(message.snapshot)
    for name, row, value in (
        ("content", 16, 8),
        ("content", 16, -1),
        ("length", 16, 10**6),
        ("held", 16, 1),  # of an input that is not cached
        ("cached", 0, 2),
        ("embeds", 0, 71),  # more than there is room for
        ("embeds", 7, -1),
    ):
        false = rows.copy()
        false[name][row] = value
        with pytest.raises(SnapshotError):
            check(message.snapshot._replace(inputs=false.tobytes()))
    with pytest.raises(SnapshotError):
        check(message.snapshot._replace(inputs=rows[:1].tobytes()))


@pytest.mark.parametrize("seed", range(200))
def test_rows_that_pass_the_checks_do_no_harm(seed: int) -> None:
    """Random bytes at any place of a snapshot: it is refused, or predictions do no harm."""
    rng, cache = Random(seed), SnapshotCache(knots)
    predictor, engine, now_s = followed(cache, running=4)
    message = sent(predictor, now_s)
    assert message.snapshot is not None
    rows = bytearray(message.snapshot.requests)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(rows))
        rows[at] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
    engine.hear(message, now_s)
    changed = message.snapshot._replace(requests=bytes(rows))
    try:
        check(changed)
    except SnapshotError:
        return
    engine.hear(message._replace(snapshot=changed), now_s)
    (prediction,) = predicted(cache, new_request(), now_s)
    assert prediction.ttft_s >= 0, f"pytest {__file__} -k 'harm and {seed}'"
