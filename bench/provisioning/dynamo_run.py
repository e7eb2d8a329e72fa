"""Runs Dynamo's simulator; for a Python that has its packages and not this project.

A line of JSON on stdin is one run, the line of JSON on stdout that answers it what came of it; the
first line on stdout names the versions. Start it with `-I`: `dynamo` would else be the module
beside this one.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from math import ceil
from typing import Any

from dynamo.replay.api import run_trace_replay  # type: ignore[import-not-found]

PACKAGES = ("ai-dynamo", "ai-dynamo-runtime", "aisimulate", "pmdarima", "prophet", "filterpy")
TRACE_BLOCK_TOKENS = 4096
"""Longer than any prompt here, so that each needs one hash of its own."""


def main() -> None:
    """Answer every line."""
    _answer({name: version(name) for name in PACKAGES})
    for line in sys.stdin:
        _answer(run(json.loads(line)))


def _answer(what: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def run(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Replay a trace, with a planner if one is configured."""
    report = run_trace_replay(
        asked["trace"],
        extra_engine_args=asked["engine"],
        num_workers=asked["workers"],
        router_mode=asked["router"],
        trace_block_size=TRACE_BLOCK_TOKENS,
        capture_per_request=True,
        planner_config=asked["planner"],
    )
    return figures(report, asked)


def figures(report: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios, seconds and counts; what happens after the last arrival costs nothing."""
    requests = report.per_request
    end_s = max(each["arrival_time_ms"] for each in requests) / 1e3
    good = sum(met(each, asked["ttft_ms"], asked["itl_ms"]) for each in requests)
    waits_s = [e["ttft_ms"] / 1e3 for e in requests if e["ttft_ms"] is not None]
    sizes, changes_s = [(0.0, asked["workers"])], []
    if report.planner is not None:
        sizes += sizes_of(report.planner.lifecycle_operations)
        changes_s = [event.at_s for event in report.planner.scaling_events if event.at_s < end_s]
    return {
        "requests": len(requests),
        "good": good,
        "within": good / len(requests),
        "ttft_p99_s": sorted(waits_s)[ceil(0.99 * len(waits_s)) - 1],
        "tpot_mean_s": sum(e["itl_ms"] or 0.0 for e in requests) / len(requests) / 1e3,
        "hours": worker_s(sizes, end_s) / 3600.0,
        "end_s": end_s,
        "changes_s": changes_s,
        "sizes": sizes,
    }


def met(request: Mapping[str, Any], ttft_ms: float, itl_ms: float) -> bool:
    """Answered to its end within both targets; an answer of one token has no ITL."""
    return (
        request["terminal_status"] == "completed"
        and request["ttft_ms"] <= ttft_ms
        and (request["itl_ms"] or 0.0) <= itl_ms
    )


def sizes_of(operations: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """(seconds, workers that are paid for: starting, active and draining ones)."""
    return [
        (each["at_ms"] / 1e3, sum(map(len, each["state_after_batch"].values())))
        for each in operations
    ]


def worker_s(sizes: Sequence[tuple[float, int]], end_s: float) -> float:
    """Seconds of workers from 0 to `end_s`."""
    ends = [*(at_s for at_s, _ in sizes[1:]), end_s]
    return sum(
        count * max(0.0, min(until_s, end_s) - at_s)
        for (at_s, count), until_s in zip(sizes, ends, strict=True)
    )


if __name__ == "__main__":
    main()
