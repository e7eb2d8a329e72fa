"""The scheduler classes of paced engines, which sleep and end answers at secret lengths.

    python -m vllm.entrypoints.openai.api_server ... \
        --scheduler-cls bench.paced.engine.PacedScheduler \
        --additional-config '{"foretell_slowdown": 1.0}'

Scheduling, KV cache, prefix cache, sampling and API server are vLLM's own. Only a step's end is
delayed, by a sleep, until the profile's time for the batch has passed.
"""

import time
from typing import Any

from bench.paced.pace import SLOWDOWN_KEY, Clock, step_time
from foretell.services.backend.vllm.cosched.scheduler import CoSyncScheduler
from foretell.services.backend.vllm.plugin import ForetellSyncScheduler
from foretell.services.backend.vllm.shape import batch_shape
from foretell.tools.check.in_engine import SecretLength


class _Paced:
    """Mixin before one of Foretell's schedulers; its steps last as long as a profile says.

    On a CPU vLLM schedules synchronously: `schedule`, the model, `update_from_output`, in this
    order and one thread. The sleep comes before the last, so that snapshots include it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config  # type: ignore[attr-defined]
        self._clock = Clock(step_time(), config[SLOWDOWN_KEY])

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        begun_s = time.monotonic()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        shape = batch_shape(output.num_scheduled_tokens, self.requests)  # type: ignore[attr-defined]
        self._clock.scheduled(shape, begun_s)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(self._clock.rest_s(time.monotonic()))
        return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]


class PacedScheduler(_Paced, SecretLength, ForetellSyncScheduler):
    """vLLM's scheduler with the plugin, paced."""


class PacedCoScheduler(_Paced, SecretLength, CoSyncScheduler):
    """The co-scheduling class, paced."""
