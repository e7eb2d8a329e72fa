"""Scenarios of the replay format: an engine's configuration and the requests it gets.

A scenario is a JSON object `{"name", "config": {...}, "requests": [{...}, ...]}`. All keys but a
request's `id` and `prompt` are optional; the defaults are those of the dataclasses below.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from foretell.engine.content import Segment
from foretell.model import EngineConfig


class ScenarioError(ValueError):
    """The scenario is malformed; the message names the key."""


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """`config` of a scenario, in vLLM's names; `async` is `async_`."""

    async_: bool = False
    block_size: int = 16
    num_blocks: int = 257
    """The null block included."""
    max_model_len: int = 2048
    max_num_seqs: int = 8
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 256
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    long_prefill_threshold_when_alone: bool = False
    """No setting of vLLM's: what its versions before 0.31 do."""
    policy: str = "fcfs"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True

    def engine_config(self) -> EngineConfig:
        budget = self.max_num_scheduled_tokens or self.max_num_batched_tokens
        return EngineConfig(
            model_name="replay",
            block_size_tokens=self.block_size,
            total_blocks=self.num_blocks - 1,
            max_num_seqs=self.max_num_seqs,
            max_num_active_seqs=self.max_num_active_seqs or 0,
            max_num_scheduled_tokens=min(budget, self.max_num_batched_tokens),
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=self.long_prefill_token_threshold_adaptive,
            long_prefill_threshold_when_alone=self.long_prefill_threshold_when_alone,
            policy=self.policy,
            enable_prefix_caching=self.enable_prefix_caching,
            enable_chunked_prefill=self.enable_chunked_prefill,
            async_scheduling=self.async_,
            watermark_ratio=self.watermark,
            reserve_full_isl=self.scheduler_reserve_full_isl,
        )


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One of a scenario's `requests`; steps are iterations of the engine loop."""

    id: str
    prompt: tuple[Segment, ...]
    arrival_step: int = 0
    priority: int = 0
    max_tokens: int = 16
    stop_after: int | None = None
    """EOS is sampled as this output token."""
    abort_step: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A replay's input."""

    name: str
    config: ReplayConfig
    requests: tuple[ReplayRequest, ...]


def parse_scenario(data: object) -> Scenario:
    """The scenario that decoded JSON describes; raises `ScenarioError`."""
    known = _object(data, "", ("name", "config", "requests"))
    name = known.get("name", "")
    _expect(isinstance(name, str), "name", "text", name)
    config = _config(known.get("config", {}))
    rows = known.get("requests", [])
    if not isinstance(rows, list):
        raise ScenarioError(f"requests: expected a list, not {rows!r}")
    requests = tuple(_request(row, f"requests[{i}]", config) for i, row in enumerate(rows))
    seen: set[str] = set()
    for index, request in enumerate(requests):
        _expect(request.id not in seen, f"requests[{index}].id", "an id of its own", request.id)
        seen.add(request.id)
    return Scenario(str(name), config, requests)


_FLAGS = {
    "async_",
    "long_prefill_token_threshold_adaptive",
    "long_prefill_threshold_when_alone",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
}
_OPTIONAL = {"max_num_active_seqs", "max_num_scheduled_tokens", "stop_after", "abort_step"}
_FROM_ZERO = {"long_prefill_token_threshold", "arrival_step", "abort_step"}


def _config(data: object) -> ReplayConfig:
    names = {f.name.rstrip("_"): f.name for f in fields(ReplayConfig)}
    values = {names[key]: value for key, value in _object(data, "config", names).items()}
    for name, value in values.items():
        key = f"config.{name.rstrip('_')}"
        if name in _FLAGS:
            _expect(isinstance(value, bool), key, "true or false", value)
        elif name == "policy":
            _expect(value in ("fcfs", "priority"), key, '"fcfs" or "priority"', value)
        elif name == "watermark":
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            _expect(number and 0 <= value < 1, key, "a ratio from 0 to below 1", value)
        elif not (value is None and name in _OPTIONAL):
            _integer(value, key, least=2 if name == "num_blocks" else int(name not in _FROM_ZERO))
    config = ReplayConfig(**values)
    active = config.max_num_active_seqs
    fits = active is None or active <= config.max_num_seqs
    _expect(fits, "config.max_num_active_seqs", "at most max_num_seqs", active)
    return config


def _request(data: object, where: str, config: ReplayConfig) -> ReplayRequest:
    names = tuple(f.name for f in fields(ReplayRequest))
    values = dict(_object(data, where, names))
    for name in ("id", "prompt"):
        _expect(name in values, f"{where}.{name}", "a value", None)
    request_id = values["id"]
    _expect(isinstance(request_id, str) and request_id != "", f"{where}.id", "text", request_id)
    values["prompt"] = _prompt(values["prompt"], f"{where}.prompt")
    for name, value in values.items():
        key = f"{where}.{name}"
        if name == "priority":
            _integer(value, key, least=None)
        elif name not in {"id", "prompt"} and not (value is None and name in _OPTIONAL):
            _integer(value, key, least=int(name not in _FROM_ZERO))
    request = ReplayRequest(**values)
    tokens = request.prompt_tokens
    limit = f"1 to {config.max_model_len} tokens (max_model_len)"
    _expect(1 <= tokens <= config.max_model_len, f"{where}.prompt", limit, tokens)
    return request


def _prompt(data: object, key: str) -> tuple[Segment, ...]:
    _expect(isinstance(data, list) and bool(data), key, "[[segment, n_tokens], ...]", data)
    segments = []
    for index, pair in enumerate(data if isinstance(data, list) else ()):
        where = f"{key}[{index}]"
        is_pair = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
        _expect(is_pair, where, "[segment, n_tokens]", pair)
        _integer(pair[1], where, least=0)
        segments.append((pair[0], pair[1]))
    return tuple(segments)


def _object(data: object, where: str, names: Collection[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ScenarioError(f"{where or 'the scenario'}: expected an object, not {data!r}")
    for key in data:
        if key not in names:
            path = f"{where}.{key}" if where else key
            raise ScenarioError(f"{path}: unknown key; known are {', '.join(names)}")
    return data


def _integer(value: object, key: str, least: int | None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    wanted = "a whole number" if least is None else f"a whole number of at least {least}"
    _expect(whole and (least is None or value >= least), key, wanted, value)  # type: ignore[operator]


def _expect(holds: bool, key: str, wanted: str, value: object) -> None:
    if not holds:
        raise ScenarioError(f"{key}: expected {wanted}, not {value!r}")
