"""A live page that shows the engines' work and the predictions for each request there.

The page itself is static; its data comes from `/console/state`, which needs an admin key. While
visible it asks once a second, each time over another connection, so that it reaches all replicas
behind an address. A replica computes nothing for it otherwise.
"""

import time
from collections.abc import Mapping
from importlib import resources
from itertools import islice
from typing import Any

from foretell.http1.response import Response
from foretell.services.scheduler.placing.attempt import Attempt, RequestTrace, Traces
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.record.status import WINDOW_S

STATE = "/console/state"
_SCRIPTS = ("console.js", "engines.js", "format.js", "requests.js", "server.js")
_FILES = {
    "/console": ("console.html", "text/html; charset=utf-8"),
    "/console/console.css": ("console.css", "text/css; charset=utf-8"),
    **{f"/console/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
}
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def static_pages() -> dict[str, Response]:
    """The static files, by path; they contain nothing about the cluster."""
    return {path: _page(*file) for path, file in _FILES.items()}


def _page(name: str, content_type: str) -> Response:
    body = (resources.files(__name__) / name).read_bytes()
    return Response(200, body, content_type, _HEADERS)


MOST_REQUESTS = 50
"""Most requests that are listed, the latest ones."""
_LONGEST_S = 1e6  # JSON has no infinity


def console_state(status: Mapping[str, Any], placer: Placer) -> dict[str, Any]:
    """The report at `/status` with the lanes of each engine, the latest requests, and how many of
    the last minute's answers kept their targets."""
    given, met = _targets(placer.traces, time.time() - WINDOW_S)
    return {
        **status,
        "instances": _with_lanes(status["instances"], placer.predictors),
        "requests": [_row(trace) for trace in islice(placer.traces.latest(), MOST_REQUESTS)],
        "targets": {"given": given, "met": met},
    }


def _with_lanes(instances: list[dict[str, Any]], predictors: Predictors) -> list[dict[str, Any]]:
    """Each instance with its requests in their order, each as stage, tokens so far, and seconds
    until its first and its last token."""
    lanes = {
        instance_id: [[stage, n, _bounded(first), _bounded(last)] for stage, n, first, last in each]
        for instance_id, each in predictors.lanes().items()
    }
    return [{**each, "lanes": lanes.get(each["instance_id"], [])} for each in instances]


def _row(trace: RequestTrace) -> dict[str, Any]:
    last = trace.attempts[-1]
    prediction = last.decision.chosen.prediction
    return {
        "request_id": trace.request_id,
        "model_name": trace.model_name,
        "instance_id": last.instance_id,
        "attempts": len(trace.attempts),
        "placed_unix_s": round(trace.attempts[0].placed_unix_s, 3),
        "state": _state(last),
        "predicted_ttft_s": prediction and _bounded(prediction.ttft_s),
        "predicted_e2e_s": prediction and _bounded(prediction.e2e_s),
        "ttft_s": _bounded(last.ttft_s) or None,
        "e2e_s": _bounded(last.e2e_s) or None,
        "met": last.met_targets,
    }


def _state(attempt: Attempt) -> str:
    if not attempt.settled:
        return "in progress"
    if attempt.finished:
        return "answered" if attempt.answered else "refused"
    return "broken" if attempt.broken else "given up"


def _targets(traces: Traces, since_unix_s: float) -> tuple[int, int]:
    outcomes = [trace.attempts[-1].met_targets for trace in traces.since(since_unix_s)]
    return sum(each is not None for each in outcomes), sum(each is True for each in outcomes)


def _bounded(seconds: float) -> float:
    return round(min(seconds, _LONGEST_S), 4)
