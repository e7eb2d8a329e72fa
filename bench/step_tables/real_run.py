"""A published per-request vLLM run, as step times: a check of a profile against a whole engine.

The run holds no steps, only each request's first scheduling, first and last token. In a window
where N requests decode and G tokens come out, a step took window * N / G on average, for every
decoding request gains one token a step. The mean batch shape of the window follows likewise.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape

WINDOW_S = 1.0
LLMSERVINGSIM_RTX = "llmservingsim/bench/examples/RTXPRO6000/Llama-3.1-8B/vllm/requests.jsonl.gz"


def read_requests(path: Path) -> list[dict[str, Any]]:
    """The requests of a run, one JSON object a line."""
    raw = path.read_bytes()
    while raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return [json.loads(line) for line in raw.splitlines()]


def overlap_share(start: float, end: float, low: float, high: float) -> float:
    """The share of [start, end] that lies in [low, high]."""
    return max(0.0, min(end, high) - max(start, low)) / max(end - start, 1e-9)


def window(requests: list[dict[str, Any]], low: float, high: float) -> tuple[float, BatchShape]:
    """Mean seconds of a step in the window, and the mean shape; (0, ...) where nothing decodes."""
    decoding = generated = pairs = prefill = prefill_pairs = arrivals = 0.0
    for r in requests:
        scheduled, first, last = r["scheduled_ts"], r["first_token_ts"], r["last_token_ts"]
        share = overlap_share(first, last, low, high)
        present = share * (last - first) / (high - low)
        middle = (max(first, low) + min(last, high)) / 2
        context = r["input_toks"] + r["output_toks"] * (middle - first) / max(last - first, 1e-9)
        decoding += present
        pairs += present * context
        generated += share * (r["output_toks"] - 1)
        share = overlap_share(scheduled, first, low, high)
        arrivals += share
        prefill += share * r["input_toks"]
        prefill_pairs += share * r["input_toks"] * (r["input_toks"] + 1) / 2
    if generated < 1:
        return 0.0, BatchShape()
    step_s = (high - low) * decoding / generated
    steps = (high - low) / step_s
    return step_s, BatchShape(
        prefill_seqs=round(arrivals / steps),
        prefill_tokens=round(prefill / steps),
        prefill_pairs=round(prefill_pairs / steps),
        decode_seqs=round(decoding),
        decode_pairs=round(pairs),
    )


def compare(path: Path, model: LinearStepTime) -> str:
    """One line: the model against the run's mean step times, window by window."""
    requests = read_requests(path)
    start = min(r["first_token_ts"] for r in requests)
    end = max(r["last_token_ts"] for r in requests)
    measured, predicted = [], []
    for low in np.arange(start, end - WINDOW_S, WINDOW_S):
        step_s, shape = window(requests, float(low), float(low) + WINDOW_S)
        if step_s:
            measured.append(step_s)
            predicted.append(model.step_s(shape))
    m, p = np.array(measured), np.array(predicted)
    return (
        f"real run, {len(m)} windows of {WINDOW_S:.0f} s: mean step {m.mean() * 1e3:.2f} ms "
        f"measured, {p.mean() * 1e3:.2f} ms predicted; relative error "
        f"{np.median(np.abs(p - m) / m):.1%} median, signed {np.median((p - m) / m):+.1%}"
    )
