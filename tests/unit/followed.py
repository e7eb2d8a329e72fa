"""Predictors and followers of them, in one process."""

from dataclasses import replace

from foretell.config import list_profiles, load_profile
from foretell.engine import SnapshotPredictor
from foretell.engine.published import Published
from foretell.engine.snapshot_cache import FollowedEngine, SnapshotCache
from foretell.kernel.step_time import StepTime
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.tables import NO_TABLES, profile_step_time
from foretell.length.distribution import knots
from foretell.model import (
    CachedInput,
    EncoderInput,
    EngineSnapshot,
    LengthEstimate,
    Prediction,
    RequestSpec,
)
from foretell.tools.harness.cases import Size, make_case
from foretell.v1 import predictor_pb2
from foretell.wire.published import MessageReader, published_to_proto, snapshot_to_proto

PROFILE = load_profile(list_profiles()[0])
STEP_TIME = OnlineStepTime(PROFILE)
TABLES = profile_step_time(PROFILE).packed()


def tables_of(text: str) -> StepTime:
    assert text == "profile"
    return TABLES


def new_predictor(snapshot: EngineSnapshot) -> SnapshotPredictor:
    predictor = SnapshotPredictor(dispatch_delay_s=0.003, length_row=knots, prior_tokens=100.0)
    predictor.hear(snapshot)
    return predictor


def sent(predictor: SnapshotPredictor, now_s: float, notices: int = 0) -> Published:
    """The message that a follower receives, encoded to bytes and decoded."""
    payload = bytes_of(predictor, now_s, notices).SerializeToString()
    return MessageReader(tables_of, NO_TABLES).read(predictor_pb2.Published.FromString(payload))


def bytes_of(
    predictor: SnapshotPredictor, now_s: float, notices: int = 0
) -> predictor_pb2.Published:
    """The message that the predictor sends."""
    snapshot = predictor.publish(STEP_TIME, now_s, STEP_TIME.variances)
    assert snapshot is not None
    message = Published(
        now_s,
        predictor.heard_unix_s,
        snapshot,
        notices=notices,
        silent_s=predictor.silent_s(STEP_TIME, now_s),
    )
    return published_to_proto(message, snapshot_to_proto(snapshot), "profile")


def predicted(cache: SnapshotCache, request: RequestSpec, now_s: float) -> list[Prediction]:
    fresh = cache.fresh([f"engine-{i}" for i in range(100)], now_s)
    return cache.predict(
        fresh, request, now_s, announced_only=True, externality=True, with_quantiles=True
    )


def illustrated(snapshot: EngineSnapshot) -> EngineSnapshot:
    """The snapshot of an engine that encodes one image a step; all waiting requests have one."""
    config = replace(
        snapshot.config, max_num_encoder_input_tokens=40, encoder_cache_size=100, max_num_seqs=200
    )
    waiting = [
        replace(row, encoder_inputs=(EncoderInput(i % 7, 0, 12, 10, 1, 11),), prompt_tokens=512)
        for i, row in enumerate(snapshot.waiting)
    ]
    cache = (CachedInput(3, 10), CachedInput(99, 30), CachedInput(4, 10))
    return replace(snapshot, config=config, waiting=tuple(waiting), encoder_cache=cache)


def means(prediction: Prediction) -> tuple[float | None, ...]:
    added = prediction.added_ttft_s, prediction.added_e2e_s
    return prediction.ttft_s, prediction.e2e_s, prediction.preempted_s, *added


def followed(
    cache: SnapshotCache, running: int = 8
) -> tuple[SnapshotPredictor, FollowedEngine, float]:
    snapshot = make_case(Size(running, 0), 0, async_scheduling=True).snapshot
    return new_predictor(snapshot), cache.follow("engine-0"), snapshot.taken_unix_s


def new_request(request_id: str = "n", **fields: object) -> RequestSpec:
    values: dict[str, object] = {"max_tokens": 0} | fields
    return RequestSpec(request_id, 500, length=LengthEstimate(100.0), **values)  # type: ignore[arg-type]
