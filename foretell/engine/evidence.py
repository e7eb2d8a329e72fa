"""What engines without our plugin say of their limits and load, in their metrics and models."""

import re
from collections.abc import Mapping
from typing import Any

from foretell.engine.seen_limits import Evidence
from foretell.model.limits import Limits

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \S+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_START = "process_start_time_seconds"
_CONFIG = "vllm:cache_config_info"
_USED, _USAGE = "sglang:num_used_tokens", "sglang:token_usage"
_CAPACITY, _PAGE, _CONTEXT = "sglang:max_total_num_tokens", "sglang:page_size", "sglang:context_len"
_NAMES = {*_RUNNING, *_WAITING, _USED, _USAGE, _CAPACITY, _PAGE, _CONTEXT}
_MOST, _LONGEST_RUN = 1 << 30, 32
_BLOCK = 16
"""Tokens of a KV block, where an engine counts in tokens."""


def evidence_of(metrics: str) -> Evidence | None:
    """What the `/metrics` of vLLM or SGLang say; None where they do not say who runs."""
    totals: dict[str, float] = {}
    config: Mapping[str, str] = {}
    run = ""
    for name, labels, text in _SAMPLE.findall(metrics):
        if name == _CONFIG:
            config = dict(_LABEL.findall(labels))
        elif name == _START:
            run = text[:_LONGEST_RUN]
        elif name in _NAMES and (value := _number(text)) is not None:
            totals[name] = totals.get(name, 0.0) + value
    running = next((totals[name] for name in _RUNNING if name in totals), None)
    if running is None:
        return None
    waiting = next((totals[name] for name in _WAITING if name in totals), 0.0)
    block = _whole(config.get("block_size")) or _whole(totals.get(_PAGE, 0.0))
    capacity, usage = totals.get(_CAPACITY, 0.0), totals.get(_USAGE, 0.0)
    if not capacity and usage > 0.0:
        capacity = totals.get(_USED, 0.0) / usage
    limits = Limits(
        max_model_len=_whole(totals.get(_CONTEXT, 0.0)),
        block_size_tokens=max(block, _BLOCK) if capacity else block,
        total_blocks=_whole(config.get("num_gpu_blocks")) or int(capacity) // max(block, _BLOCK),
    )
    return Evidence(int(running), int(waiting), limits, run)


def longest_of(models: Any) -> int:
    """The shortest `max_model_len` in a list of models; 0 where none is told."""
    cards = models.get("data") if isinstance(models, dict) else None
    told = [c.get("max_model_len") for c in cards or () if isinstance(c, dict)]
    return min((n for n in told if type(n) is int and 0 < n < _MOST), default=0)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < _MOST else None


def _whole(value: object) -> int:
    """A whole number; 0 where it is none, or none that can be meant."""
    number = _number(str(value))
    return 0 if number is None else int(number)
