"""The configurations of Dynamo's planner that are compared."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from bench.provisioning.day import MOST, SLO

Config = Mapping[str, Any]
"""Fields of Dynamo's `PlannerConfig`."""
Timing = Literal["added", "whole"]
"""How long Dynamo's engine takes for a prompt's chunk beside decodes: what it adds to a step of
decodes, or as long as a step of the chunk alone."""
INITIAL = 3
"""Workers at the beginning."""
EVER = {
    "mode": "agg",
    "backend": "mocker",
    "max_gpu_budget": MOST,
    "min_endpoint": 1,
    "report_interval_hours": None,
    "live_dashboard_port": 0,
    "control_api_port": 0,
}
"""What every configuration states: bounds, and that nothing else is written or served."""
SLA = {"optimization_target": "sla", "ttft_ms": 1e3 * SLO.ttft_s, "itl_ms": 1e3 * SLO.tpot_s}
EVERY_MINUTE = {"throughput_adjustment_interval_seconds": 60}
DAY_BEFORE = "the day before"
"""Stands for the trace of the day before a run's own."""


class Planner(NamedTuple):
    """One configuration of the planner."""

    name: str
    config: Config
    timing: Timing = "added"


def _forecast(
    predictor: str, every_s: int, itl_ms: float, timing: Timing = "added", *, warmed: bool = False
) -> Planner:
    name = f"{predictor}, {every_s} s, ITL {itl_ms:g} ms{', warmed' if warmed else ''}"
    own: Config = {
        "load_predictor": predictor,
        "throughput_adjustment_interval_seconds": every_s,
        "itl_ms": itl_ms,
    }
    if warmed:
        own = {**own, "load_predictor_warmup_trace": DAY_BEFORE}
    return Planner(f"{name}{', whole' if timing == 'whole' else ''}", {**SLA, **own}, timing)


def _load(itl_ms: float, floor: bool = False) -> Planner:
    own: Config = {
        "itl_ms": itl_ms,
        "enable_load_scaling": True,
        "enable_throughput_scaling": floor,
        **({"load_predictor": "constant", **EVERY_MINUTE} if floor else {}),
    }
    return Planner(f"load{', floor' if floor else ''}, ITL {itl_ms:g} ms", {**SLA, **own})


def _thresholds(up: int, down: int) -> Planner:
    own: Config = {
        "optimization_target": "load",
        "decode_scale_up_kv_rate": up,
        "decode_scale_down_kv_rate": down,
    }
    return Planner(f"KV {up}%, {down}%", own)


FIXED = (
    Planner("default", {}),
    Planner("sla", SLA),
)
"""Out of the box: Dynamo's default target, and its default for given targets."""
CANDIDATES: dict[str, tuple[Planner, ...]] = {
    "tuned forecast": (
        _forecast("arima", 180, 28.0, warmed=True),
        _forecast("kalman", 60, 28.0),
        _forecast("constant", 180, 28.0),
        *(_forecast("constant", 60, itl_ms) for itl_ms in (28.0, 100.0)),
    ),
    "tuned forecast, whole": tuple(
        _forecast("kalman", 60, itl_ms, "whole") for itl_ms in (38.0, 44.0, 50.0)
    ),
    "tuned load": (
        *(_load(itl_ms) for itl_ms in (28.0, 30.0, 33.0, 100.0)),
        _load(28.0, floor=True),
        Planner("latency", {"optimization_target": "latency"}),
        _thresholds(50, 20),
    ),
}
"""What is tried on the tuned day of each kind: sized by a forecast of the rate, and by the load
that the workers report (with `floor`, never below what the forecast asks for)."""
