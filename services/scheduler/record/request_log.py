"""The request log: one JSON object a line for each attempt, in a file rotated by size."""

import json
import logging
import time
from logging.handlers import RotatingFileHandler
from math import isfinite
from pathlib import Path

from services.scheduler.http.parsing import ParsedRequest
from services.scheduler.http.slo import Outcome, SloUnattainable, Terms
from services.scheduler.placing.placer import Placement
from services.scheduler.record.result import Result


class RequestLog:
    """Writes what was predicted for each attempt beside what happened."""

    def __init__(self, path: str, max_bytes: int) -> None:
        """`path` "" writes nothing. At most two files of `max_bytes` are kept."""
        self._log = _logger(path, max_bytes) if path else None

    def ended(
        self,
        request: ParsedRequest,
        request_id: str,
        placement: Placement,
        result: Result,
        *,
        ttft_s: float,
        e2e_s: float,
        outcome: Outcome | None,
    ) -> None:
        """Write the line of an attempt that has ended; latencies are 0 where not known."""
        if self._log is None:
            return
        prediction, spec = placement.prediction, placement.spec
        line = {
            "request_id": request_id,
            "time_unix_s": round(time.time(), 3),
            "model_name": request.model,
            "instance_id": placement.instance.config.instance_id,
            "emulated": placement.instance.emulated,
            "policy": placement.policy,
            "stream": request.stream,
            "status": result.status,
            "finished": result.finished,
            "sequences": spec.sequences,
            "priority": spec.priority,
            "placement_s": round(placement.took_s, 6),
            "predicted_prompt_tokens": spec.prompt_tokens,
            "prompt_tokens": result.prompt_tokens or None,
            "predicted_cached_tokens": prediction.cached_tokens if prediction else None,
            "cached_tokens": result.cached_tokens,
            "predicted_output_tokens": round(spec.length.expected_tokens, 1),
            "length_source": spec.length.source,
            "output_tokens": result.output_tokens or None,
            "predicted_ttft_s": _seconds(prediction.ttft_s) if prediction else None,
            "ttft_s": _seconds(ttft_s) if ttft_s else None,
            "predicted_e2e_s": _seconds(prediction.e2e_s) if prediction else None,
            "e2e_s": _seconds(e2e_s) if e2e_s else None,
            "snapshot_age_s": _seconds(prediction.snapshot_age_s) if prediction else None,
            "calibration_steps": prediction.calibration_steps if prediction else None,
            **_targets(request.terms, outcome),
        }
        self._log.info(json.dumps(line))

    def rejected(
        self, request: ParsedRequest, request_id: str, policy: str, refusal: SloUnattainable
    ) -> None:
        """Write the line of a request that was refused because nobody could answer in time."""
        if self._log is None:
            return
        line = {
            "request_id": request_id,
            "time_unix_s": round(time.time(), 3),
            "model_name": request.model,
            "policy": policy,
            "stream": request.stream,
            "status": refusal.status,
            "finished": False,
            "predicted_ttft_s": _seconds(refusal.ttft_s),
            **_targets(request.terms, "rejected"),
        }
        self._log.info(json.dumps(line))

    def close(self) -> None:
        """Flush and close the file."""
        if self._log is not None:
            for handler in list(self._log.handlers):
                self._log.removeHandler(handler)
                handler.close()


def _targets(terms: Terms, outcome: Outcome | None) -> dict[str, object]:
    return {
        "ttft_target_s": _seconds(terms.slo.ttft_s),
        "tpot_target_s": _seconds(terms.slo.tpot_s),
        "slo_outcome": outcome,
    }


def _seconds(seconds: float) -> float | None:
    return round(seconds, 6) if isfinite(seconds) else None  # JSON has no infinity


def _logger(path: str, max_bytes: int) -> logging.Logger:
    """A logger of its own that writes bare lines."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger(f"foretell.requests.{path}")
    log.propagate = False
    log.setLevel(logging.INFO)
    handler = RotatingFileHandler(path, maxBytes=max_bytes, backupCount=1)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    return log
