"""The limits of an engine that does not publish its configuration, as far as they can be observed.

Its metrics and its list of models state some. The number of requests that run while others wait
shows `max_num_seqs`.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretell.model import EngineConfig
from foretell.model.limits import NO_LIMITS, EngineLimits

OBSERVED = "observed from outside"
"""An approximation that every observed engine lists."""
TELL_EVERY_S = 0.1
"""Seconds between the reports of an observer."""
_LOOKS, LOOK_EVERY_S = 3, 0.5
"""The running requests count as all that may run if others wait at so many looks in a row."""
ASSUMED = EngineLimits(256, 8192, 32_768, 16)
"""Used where nothing is known: vLLM's defaults on large GPUs (vllm/engine/arg_utils.py, 0.32)."""

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
"""Least tokens of a KV block that are assumed of engines which count capacity in tokens."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an engine's metrics state."""

    running: int
    waiting: int
    limits: EngineLimits = NO_LIMITS
    run: str = ""
    """Identifies the engine's run; it changes with every start."""


class SeenLimits:
    """Limits by precedence: configured, stated by the engine, observed, assumed."""

    def __init__(self, given: EngineLimits) -> None:
        """`given`: the limits from the configuration."""
        self.found = NO_LIMITS
        """The limits that the engine states."""
        self.seats = 0
        """The observed most sequences that may run; 0: not observed yet."""
        self._given = given
        self._looks: deque[tuple[int, bool]] = deque(maxlen=_LOOKS)
        self._looked_s = 0.0

    def forget(self) -> None:
        """Forget what was found of the engine's previous run."""
        self.seats, self.found = 0, NO_LIMITS
        self._looks.clear()

    def weigh(self, running: int, waits: bool, at_s: float) -> None:
        """Note how many run and whether others wait: then as many run as may."""
        if at_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = at_s
        self._looks.append((running, waits))
        if len(self._looks) == _LOOKS and all(waits for _, waits in self._looks):
            self.seats = max(self.seats, *(running for running, _ in self._looks))

    def config(self) -> EngineConfig:
        """The configuration that the twin runs by."""
        seen = EngineLimits(max_num_seqs=self.seats)
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
            reported_within_s=5 * TELL_EVERY_S,
            approximations=(OBSERVED,),
        )


def evidence_of(metrics: str) -> Evidence | None:
    """Read the `/metrics` of vLLM or SGLang; None if they do not state running requests."""
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
    limits = EngineLimits(
        max_model_len=_whole(totals.get(_CONTEXT, 0.0)),
        block_size_tokens=max(block, _BLOCK) if capacity else block,
        total_blocks=_whole(config.get("num_gpu_blocks")) or int(capacity) // max(block, _BLOCK),
    )
    return Evidence(int(running), int(waiting), limits, run)


def least_model_len(models: Any) -> int:
    """The least `max_model_len` in a list of models (decoded `/v1/models`); 0 if none is stated."""
    cards = models.get("data") if isinstance(models, dict) else None
    cards = cards if isinstance(cards, list) else []
    lengths = [card.get("max_model_len") for card in cards if isinstance(card, dict)]
    return min((n for n in lengths if type(n) is int and 0 < n < _MOST), default=0)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < _MOST else None


def _whole(value: object) -> int:
    """`value` as an integer; 0 if it is not a number or out of range."""
    number = _number(str(value))
    return 0 if number is None else int(number)
