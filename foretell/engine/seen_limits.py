"""The limits of an engine that does not publish its configuration, as far as they can be seen.

Its metrics and models tell some, and who runs while others wait tells how many may run.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretell.model import EngineConfig
from foretell.model.limits import NO_LIMITS, Limits

OBSERVED = "observed from outside"
"""Among the approximations of every engine that is observed."""
TELL_EVERY_S = 0.1
"""How often observers tell what they have seen."""
_LOOKS, LOOK_EVERY_S = 3, 0.5
"""Requests must wait at so many looks for those who run to count as all that may."""
ASSUMED = Limits(256, 8192, 32_768, 16)
"""Of engines that say nothing: vLLM's defaults on large GPUs (vllm/engine/arg_utils.py, 0.32)."""

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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an engine says of itself in its metrics."""

    running: int
    waiting: int
    limits: Limits = NO_LIMITS
    run: str = ""
    """Another one when the engine has started again."""


class SeenLimits:
    """What is stated counts first, then what the engine says, what is seen, and what is assumed."""

    def __init__(self, given: Limits) -> None:
        """`given`: the limits that somebody stated."""
        self.found = NO_LIMITS
        """What the engine says."""
        self.seats = 0
        """Requests that were seen to be as many as may run; 0: nothing was seen."""
        self._given = given
        self._looks: deque[tuple[int, bool]] = deque(maxlen=_LOOKS)
        self._looked_s = 0.0

    def forget(self) -> None:
        """The engine has started again."""
        self.seats, self.found = 0, NO_LIMITS
        self._looks.clear()

    def weigh(self, running: int, waits: bool, at_s: float) -> None:
        """Who runs while others wait is as many as may run."""
        if at_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = at_s
        self._looks.append((running, waits))
        if len(self._looks) == _LOOKS and all(waits for _, waits in self._looks):
            self.seats = max(self.seats, *(running for running, _ in self._looks))

    def config(self) -> EngineConfig:
        """The configuration that the twin runs by."""
        seen = Limits(max_num_seqs=self.seats)
        known = self._given.beside(self.found).beside(seen).beside(ASSUMED)
        seats = max(known.max_num_seqs, self.seats)
        most = -(-known.max_model_len // known.block_size_tokens)
        return EngineConfig(
            model_name="",
            block_size_tokens=known.block_size_tokens,
            total_blocks=known.total_blocks or seats * most,
            max_num_seqs=seats,
            max_num_scheduled_tokens=known.max_num_batched_tokens,
            max_model_len=known.max_model_len,
            told_within_s=5 * TELL_EVERY_S,
            approximations=(OBSERVED,),
        )


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
    """The shortest `max_model_len` in a list of models; 0 where there is none."""
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
