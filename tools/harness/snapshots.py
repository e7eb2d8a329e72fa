"""The cost of a snapshot: to write it, to read and check it, and to take it into a cache."""

import time
from collections.abc import Callable

from foretell.engine import SnapshotPredictor
from foretell.engine.published import Published
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.tables import NO_TABLES, packed_tables
from foretell.length import PRIOR_TOKENS
from foretell.length.distribution import knots
from foretell.tools.harness.cases import STATES, Size, make_case
from foretell.v1 import predictor_pb2
from foretell.wire.published import Reader, published_to_proto, snapshot_to_proto


def time_snapshots(
    size: Size, count: int, tick: Callable[[], None]
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each of `count` snapshots: to write, to read and to take in."""
    cache, reader = SnapshotCache(knots), Reader(packed_tables, NO_TABLES)
    engine, step_time = cache.follow("engine"), OnlineStepTime()
    times: tuple[list[float], list[float], list[float]] = [], [], []
    for number in range(count):
        case = make_case(size, number % STATES, async_scheduling=True)
        now_s = case.snapshot.taken_unix_s
        predictor = SnapshotPredictor(
            dispatch_delay_s=0.002, length_row=knots, prior_tokens=PRIOR_TOKENS
        )
        predictor.hear(case.snapshot)
        for request in case.reserved:
            predictor.reserve(request, now_s, 10.0)
        snapshot = predictor.publish(step_time, now_s)
        assert snapshot is not None, "it has heard of its engine"
        stamps = [time.perf_counter()]
        message = Published(now_s, now_s, snapshot)
        payload = published_to_proto(message, snapshot_to_proto(snapshot)).SerializeToString()
        stamps.append(time.perf_counter())
        read = reader.read(predictor_pb2.Published.FromString(payload))
        stamps.append(time.perf_counter())
        engine.hear(read, now_s)
        stamps.append(time.perf_counter())
        for seconds, begun, ended in zip(times, stamps, stamps[1:], strict=False):
            seconds.append(ended - begun)
        tick()
    return times
