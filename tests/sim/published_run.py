"""Reads a recorded vLLM run: `meta.json` and `requests.jsonl[.gz]` in one folder.

The format is LLMServingSim's (its `bench` runs vLLM's AsyncLLM in process and replays a dataset
with pinned lengths). `arrival_time` is on the wall clock, the other stamps are on the engine's
monotonic clock. Both run at one speed. Their offset is that of the request which got from one to
the other fastest, so the frontend's least time is in no latency.

The tokens of the prompts are in the dataset that `meta.json` names, by the request's number. It is
looked for in the folder and its parents, and used if the length of every prompt equals the
recorded one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.tools.files import read_bytes
from tests.sim.recorded import Latency, RecordedRequest


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run and the engine that made it."""

    model: str
    engine_version: str
    engine_kwargs: dict[str, Any]
    requests: list[RecordedRequest]
    """In order of arrival; seconds on the engine's clock."""
    kv_blocks: int
    """KV blocks without the null block; 0 if not recorded."""

    @property
    def tells_prompts(self) -> bool:
        """Whether the tokens of every prompt are known."""
        return all(request.prompt_token_ids for request in self.requests)


def requests_of(folder: Path) -> bytes:
    """The lines about the requests of the run in `folder`, unpacked; ValueError without any."""
    for name in ("requests.jsonl.gz", "requests.jsonl"):
        if (folder / name).is_file():
            return read_bytes(folder / name)
    raise ValueError(f"{folder} holds no recorded run: no requests.jsonl[.gz]")


def read_run(folder: Path) -> RecordedRun:
    """Read the run in `folder`; ValueError if there is none, or its requests have no stamps."""
    raw = requests_of(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in raw.splitlines() if line.strip()]
        finished = [row for row in rows if row.get("last_token_ts") is not None]
        offset_s = min(row["queued_ts"] - row["arrival_time"] for row in finished)
        prompts = _prompts(folder, meta, {row["request_id"]: row["input_toks"] for row in rows})
        requests = [_request(row, offset_s, prompts) for row in finished]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{folder} holds no recorded run: {error!r}") from error
    if len(finished) != len(rows):
        # The engine also served requests without stamps; a replay without them would differ.
        raise ValueError(f"{len(rows) - len(finished)} requests of {folder} did not finish")
    return RecordedRun(
        model=meta["model"],
        engine_version=meta.get("vllm_version", ""),
        engine_kwargs=meta["engine_kwargs"],
        requests=sorted(requests, key=lambda r: r.arrival_s),
        kv_blocks=max(0, int(meta.get("kv_cache", {}).get("num_gpu_blocks") or 0) - 1),
    )


def _prompts(
    folder: Path, meta: dict[str, Any], lengths: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Token ids of the prompts by request id; empty if the dataset is not at hand."""
    name = meta.get("dataset_path")
    if not name:
        return {}
    for above in (folder, *folder.resolve().parents):
        for path in (above / name, above / f"{name}.gz"):
            if path.is_file():
                rows = [json.loads(line) for line in read_bytes(path).splitlines() if line.strip()]
                ids = {f"bench-{i}": tuple(row["input_tok_ids"]) for i, row in enumerate(rows)}
                if all(len(ids.get(name, ())) == tokens for name, tokens in lengths.items()):
                    return ids
    return {}


def _request(
    row: dict[str, Any], offset_s: float, prompts: dict[str, tuple[int, ...]]
) -> RecordedRequest:
    arrival_s = row["arrival_time"] + offset_s
    tokens = row["output_toks"]
    first_s, last_s = row["first_token_ts"] - arrival_s, row["last_token_ts"] - arrival_s
    return RecordedRequest(
        request_id=row["request_id"],
        prompt_tokens=row["input_toks"],
        output_tokens=tokens,
        arrival_s=arrival_s,
        actual=Latency(first_s, last_s, tokens),
        prompt_token_ids=prompts.get(row["request_id"], ()),
    )
