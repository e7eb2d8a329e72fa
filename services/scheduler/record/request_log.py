"""The request log: one JSON object a line for each attempt, in a file rotated by size."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import orjson

from foretell.openai.parsing import ApiRequest
from foretell.openai.slo import Outcome, SloUnattainable, Terms
from foretell.services.scheduler.placing.attempt import Attempt

logger = logging.getLogger(__name__)

_GATHER_S = 0.1  # writing a line takes longer than making it

FIELDS = {
    "time_unix_s": "When the line was written.",
    "request_id": "The id in the response header.",
    "model_name": "The model that was asked for.",
    "instance_id": "The engine that answered.",
    "emulated": "Whether that engine is emulated.",
    "policy": "The policy that chose it.",
    "stream": "Whether a stream was asked for.",
    "status": "The engine's HTTP status; 0: none came.",
    "finished": "Whether the whole answer was relayed.",
    "sequences": "Prompts times `n`.",
    "priority": "vLLM's priority.",
    "placed_unix_s": "When the attempt was placed.",
    "placement_s": "Time to wait for the turn, ask and choose.",
    "predicted_prompt_tokens": "Tokens of the prompt, estimated before.",
    "prompt_tokens": "Tokens of the prompt, as the engine counted.",
    "predicted_cached_tokens": "Prompt tokens expected in the prefix cache.",
    "cached_tokens": "Prompt tokens found in the prefix cache, if vLLM runs with "
    "`--enable-prompt-tokens-details` or a snapshot showed it.",
    "predicted_output_tokens": "Estimate for each sequence.",
    "length_source": "Source of that estimate: `hint`, `model`, `history` or `prior`.",
    "output_tokens": "Tokens of all sequences.",
    "predicted_ttft_s": "Predicted seconds from placement to the first token, in the mean.",
    "announced_ttft_s": "The latency announced to its client, and the announced P90.",
    "announced_ttft_p90_s": "See `announced_ttft_s`.",
    "ttft_s": "Actual seconds from placement to the first token; for errors of predictions use "
    "lines with `stream` true.",
    "predicted_e2e_s": "Predicted seconds from placement to the last token, in the mean.",
    "announced_e2e_s": "The latency announced to its client, and the announced P90.",
    "announced_e2e_p90_s": "See `announced_e2e_s`.",
    "e2e_s": "Actual seconds from placement to the last token.",
    "snapshot_age_s": "Age of the snapshot that the prediction is based on.",
    "calibration_steps": "Engine steps that the prediction's step times were learned from.",
    "ttft_target_s": "Target for the first token.",
    "tpot_target_s": "Target for each further token.",
    "slo_outcome": "`met`, `missed` or `rejected`.",
    "explained": "What `foretell explain` tells of the attempt, of a share of requests: "
    "`explain_ratio`.",
}
"""What each field of a line means; null where it is not known or does not apply."""


class RequestLog:
    """Writes what was predicted for each attempt beside what happened. Lines are gathered for
    `_GATHER_S` and written together, each of them whole."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        lost: Callable[[int], None],
        explain: Callable[[Attempt], dict[str, Any]] | None = None,
        explain_ratio: float = 0.0,
    ) -> None:
        """`path`: "" writes nothing. At most two files of `max_bytes` are kept. `lost` gets how
        many lines could not be written. A share `explain_ratio` of the requests, drawn by their
        ids, has the result of `explain` in its lines."""
        self._explain = explain
        self._explained_below = explain_ratio * 2**32
        self._path = Path(path) if path else None
        self._max_bytes = max_bytes
        self._lost = lost
        self._is_failing = False
        self._lines: list[bytes] = []
        self._file: BinaryIO | None = None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)

    def ended(self, request: ApiRequest, attempt: Attempt, outcome: Outcome | None) -> None:
        if self._file is None:
            return
        prediction, announced, spec = attempt.prediction, attempt.announced, attempt.spec
        line = {
            "request_id": request.request_id,
            "time_unix_s": time.time(),
            "model_name": request.model,
            "instance_id": attempt.instance_id,
            "emulated": attempt.instance.emulated,
            "policy": attempt.policy,
            "stream": request.stream,
            "status": attempt.status,
            "finished": attempt.finished,
            "sequences": spec.sequences,
            "priority": spec.priority,
            "placed_unix_s": attempt.placed_unix_s,
            "placement_s": attempt.took_s,
            "predicted_prompt_tokens": spec.prompt_tokens,
            "prompt_tokens": attempt.prompt_tokens or None,
            "predicted_cached_tokens": prediction.cached_tokens if prediction else None,
            "cached_tokens": attempt.cached_tokens,
            "predicted_output_tokens": spec.length.expected_tokens,
            "length_source": spec.length.source,
            "output_tokens": attempt.output_tokens or None,
            "predicted_ttft_s": prediction.ttft_s if prediction else None,
            "announced_ttft_s": announced.ttft.typical_s if announced else None,
            "announced_ttft_p90_s": announced.ttft.p90_s if announced else None,
            "ttft_s": attempt.ttft_s or None,
            "predicted_e2e_s": prediction.e2e_s if prediction else None,
            "announced_e2e_s": announced.e2e.typical_s if announced else None,
            "announced_e2e_p90_s": announced.e2e.p90_s if announced else None,
            "e2e_s": attempt.e2e_s or None,
            "snapshot_age_s": prediction.snapshot_age_s if prediction else None,
            "calibration_steps": prediction.calibration_steps if prediction else None,
            **_targets(request.terms, outcome),
            "explained": self._explained(request.request_id, attempt),
        }
        self._add(line)

    def _explained(self, request_id: str, attempt: Attempt) -> dict[str, Any] | None:
        drawn = crc32(request_id.encode()) < self._explained_below
        return self._explain(attempt) if drawn and self._explain is not None else None

    def rejected(self, request: ApiRequest, policy: str, refusal: SloUnattainable) -> None:
        if self._file is None:
            return
        line = {
            "request_id": request.request_id,
            "time_unix_s": time.time(),
            "model_name": request.model,
            "policy": policy,
            "stream": request.stream,
            "status": refusal.status,
            "finished": False,
            "predicted_ttft_s": refusal.ttft_s,
            **_targets(request.terms, "rejected"),
        }
        self._add(line)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._write()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, line: dict[str, object]) -> None:
        # orjson writes null for infinity, which JSON does not have.
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(_GATHER_S, self._write)

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if self._file is None or not lines:
            return
        try:
            room_bytes = self._max_bytes - self._file.tell()
            text = bytearray()
            for line in lines:
                if len(text) + len(line) > room_bytes:
                    self._file.write(text)
                    self._file = self._rotated()
                    text.clear()
                    room_bytes = self._max_bytes
                text += line
            self._file.write(text)
            self._is_failing = False
        except OSError as error:  # a full disk: serving goes on
            self._lost(len(lines))
            if not self._is_failing:  # one line in the log, not ten a second
                logger.warning("lines of the request log are being lost: %s", error)
            self._is_failing = True

    def _rotated(self) -> BinaryIO:
        assert self._path is not None
        assert self._file is not None
        self._path.replace(f"{self._path}.1")
        fresh = self._path.open("ab", buffering=0)
        self._file.close()
        return fresh


def _targets(terms: Terms, outcome: Outcome | None) -> dict[str, object]:
    return {
        "ttft_target_s": terms.slo.ttft_s,
        "tpot_target_s": terms.slo.tpot_s,
        "slo_outcome": outcome,
    }
