"""Scheduler classes of an engine under test, which meter the plugin and hide answer lengths.

    python -m vllm.entrypoints.openai.api_server ... \
        --scheduler-cls foretell.tools.check.in_engine.MeteredScheduler
"""

import json
import logging
import os
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from foretell.services.backend.vllm.cosched.scheduler import CoScheduler, CoSyncScheduler
from foretell.services.backend.vllm.plugin import Publishing
from foretell.services.process.folders import write_whole
from foretell.tools.check.engine_args import LENGTH_KEY, METER_FILE, METER_KEY

_log = logging.getLogger("vllm.foretell.check")
BLOCK_STEPS = 20
"""Consecutive steps with the plugin, or without it."""
_SETTLING_STEPS = 3
"""First steps of each block, which are not measured: the block before still has some in flight."""
_MOST_BLOCKS = 5000
_NOT_EOS = 100  # an ordinary token of any vocabulary
_PAUSE_S = 0.5
"""A longer gap than this between steps means that the engine was idle."""


class _Meter:
    """Switches the plugin off and on in blocks of steps, and times them."""

    def __init__(self, scheduler: Any, file: Path) -> None:
        self._scheduler, self._file = scheduler, file
        self._plugin = scheduler.foretell
        self._draws = Random(1)
        self._order = [True, False]
        self._blocks: list[dict[str, Any]] = []
        self._began_s = 0.0
        self._in_scheduler_s = 0.0
        self._begin_block()

    def _begin_block(self) -> None:
        if len(self._blocks) % 2 == 0:
            self._draws.shuffle(self._order)
        with_plugin = self._order[len(self._blocks) % 2]
        self._switch(on=with_plugin)
        self._blocks.append({"plugin": with_plugin, "step_us": [], "own_us": [], "requests": []})
        self._steps = 0

    def _switch(self, *, on: bool) -> None:
        plugin = self._plugin
        if plugin is None:
            return
        if on and self._scheduler.foretell is None:
            plugin.recorder.missed_steps()
        self._scheduler.foretell = plugin if on else None

    def began(self, now_s: float) -> None:
        """Note a call of `schedule()`, which ends the step before it."""
        if self._began_s and now_s - self._began_s < _PAUSE_S:
            self._steps += 1
            if self._steps > _SETTLING_STEPS:
                block = self._blocks[-1]
                block["step_us"].append(round(1e6 * (now_s - self._began_s), 1))
                block["own_us"].append(round(1e6 * self._in_scheduler_s, 1))
                block["requests"].append(len(self._scheduler.running))
            if self._steps >= BLOCK_STEPS and len(self._blocks) < _MOST_BLOCKS:
                self._begin_block()
        self._began_s, self._in_scheduler_s = now_s, 0.0

    def took(self, seconds: float) -> None:
        """Add the time that one of the scheduler's methods took."""
        self._in_scheduler_s += seconds

    def end(self) -> None:
        """Leave the plugin on, and write what was measured."""
        self._switch(on=True)
        write_whole(self._file, json.dumps(self._blocks))


class _Metered:
    """A mix-in before `Publishing`. Costs a comparison a step while nothing is measured."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._meter: _Meter | None = None

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        asked = _told(request, METER_KEY)
        if asked is not None:
            try:
                self._ask(begin=bool(asked))
            except Exception:  # a failed measurement must not end the engine
                _log.warning("the meter failed", exc_info=True)
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def _ask(self, *, begin: bool) -> None:
        if begin and self._meter is None and METER_FILE in os.environ:
            self._meter = _Meter(self, Path(os.environ[METER_FILE]))
        elif not begin and self._meter is not None:
            meter, self._meter = self._meter, None
            meter.end()

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        meter = self._meter
        if meter is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        began_s = perf_counter()
        meter.began(began_s)
        began_s = perf_counter()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        meter.took(perf_counter() - began_s)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        meter = self._meter
        if meter is None:
            return super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        began_s = perf_counter()
        result = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        meter.took(perf_counter() - began_s)
        return result


class SecretLength:
    """A mix-in before a scheduler class: ends answers at lengths that only the engine knows.

    In a request with `LENGTH_KEY`, the last token is replaced by EOS, and any earlier EOS by an
    ordinary token. So, as with real text, nothing outside the engine can foresee its end, whichever
    model runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lengths: dict[str, int] = {}

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        length = _told(request, LENGTH_KEY)
        if length:
            self._lengths[request.request_id] = int(length)
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        sampled = model_runner_output.sampled_token_ids
        for name, place in model_runner_output.req_id_to_index.items() if sampled else ():
            if name in self._lengths and len(sampled[place]):
                sampled[place] = self._ended(name, list(sampled[place]))
        return super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output, *args, **kwargs
        )

    def _ended(self, name: str, tokens: list[int]) -> list[int]:
        """The tokens that a request gets in place of the sampled `tokens`."""
        request = self.requests.get(name)  # type: ignore[attr-defined]
        if request is None:  # it was aborted
            self._lengths.pop(name)
            return tokens
        eos = request.sampling_params.eos_token_id
        if eos is None:  # the request ignores EOS
            return tokens
        left = max(1, self._lengths[name] - request.num_output_tokens)
        before = [_NOT_EOS if token == eos else token for token in tokens[: left - 1]]
        if len(tokens) < left:
            return before
        del self._lengths[name]
        return [*before, eos]


class MeteredSyncScheduler(SecretLength, _Metered, Publishing, Scheduler):  # type: ignore[misc]
    """Stands in for `Scheduler`."""


class MeteredScheduler(SecretLength, _Metered, Publishing, AsyncScheduler):  # type: ignore[misc]
    """Stands in for the scheduler that vLLM itself would choose, as `ForetellScheduler` does."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is MeteredScheduler and not vllm_config.scheduler_config.async_scheduling:
            return MeteredSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls)


class CheckedCoSyncScheduler(SecretLength, CoSyncScheduler):
    """The co-scheduling class, synchronous."""


class CheckedCoScheduler(SecretLength, CoScheduler):
    """The co-scheduling class."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckedCoScheduler and not vllm_config.scheduler_config.async_scheduling:
            return CheckedCoSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls, vllm_config)


def _told(request: Any, key: str) -> Any:
    """An entry of a request's `vllm_xargs`; None if it is absent."""
    params = request.sampling_params
    return (params.extra_args or {}).get(key) if params else None
