"""Reads a recorded vLLM run: `meta.json` and `requests.jsonl[.gz]` in one folder.

The format is LLMServingSim's (its `bench` runs vLLM's AsyncLLM in process and replays a dataset
with pinned lengths). `arrival_time` is on the wall clock and the other stamps are on the engine's
monotonic clock. Both run at one speed; their offset is taken from the request whose way from one
to the other was shortest, so the least time of the frontend is part of no latency.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.sim.recorded import Latency, RecordedRequest
from tools.files import read_bytes


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run and the engine it was made with."""

    model: str
    engine_version: str
    engine_kwargs: dict[str, Any]
    requests: list[RecordedRequest]
    """In order of arrival, seconds on the engine's clock."""
    kv_blocks: int
    """What the engine said; 0 where the record does not."""


def read_run(folder: Path) -> RecordedRun:
    """The run in `folder`; ValueError where it holds none, or requests without stamps."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        path = folder / "requests.jsonl.gz"
        raw = read_bytes(path if path.exists() else folder / "requests.jsonl")
        rows = [json.loads(line) for line in raw.splitlines() if line.strip()]
        finished = [row for row in rows if row.get("last_token_ts") is not None]
        offset_s = min(row["queued_ts"] - row["arrival_time"] for row in finished)
        requests = [_request(row, offset_s) for row in finished]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{folder} holds no recorded run: {error!r}") from error
    if len(finished) != len(rows):
        # The engine also served what has no stamps; a replay without it would be another run.
        raise ValueError(f"{len(rows) - len(finished)} requests of {folder} did not finish")
    return RecordedRun(
        model=meta["model"],
        engine_version=meta.get("vllm_version", ""),
        engine_kwargs=meta["engine_kwargs"],
        requests=sorted(requests, key=lambda r: r.arrival_s),
        kv_blocks=int(meta.get("kv_cache", {}).get("num_gpu_blocks") or 0),
    )


def _request(row: dict[str, Any], offset_s: float) -> RecordedRequest:
    arrival_s = row["arrival_time"] + offset_s
    tokens = row["output_toks"]
    first_s, last_s = row["first_token_ts"] - arrival_s, row["last_token_ts"] - arrival_s
    return RecordedRequest(
        request_id=row["request_id"],
        prompt_tokens=row["input_toks"],
        output_tokens=tokens,
        arrival_s=arrival_s,
        actual=Latency(first_s, last_s, tokens),
    )
