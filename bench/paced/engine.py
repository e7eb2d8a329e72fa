"""What a paced engine loads: a scheduler that sleeps, and a logits processor that ends answers.

    python -m vllm.entrypoints.openai.api_server ... \
        --scheduler-cls bench.paced.engine.PacedScheduler \
        --logits-processors bench.paced.engine:SecretLength \
        --additional-config '{"foretell_pace": {"profile": "A30/Llama-2-7b-hf", "slowdown": 1.0}}'

Scheduling, KV cache, prefix cache, sampling and API server are vLLM's own. Only a step's end is
put off, by a sleep, until the profile's time for the batch has passed.
"""

import time
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from bench.paced.pace import LENGTH_KEY, Clock, Pace
from services.backend.vllm.cosched.scheduler import CoSyncScheduler
from services.backend.vllm.plugin import ForetellSyncScheduler
from services.backend.vllm.shape import batch_shape


class _Paced:
    """Mixed in before one of our schedulers; its steps last as long as a profile says.

    On a CPU vLLM schedules synchronously: `schedule`, the model, `update_from_output`, in this
    order and one thread. The sleep lies before the last, so that snapshots tell of it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pace = Pace.of_setting(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        self._clock = Clock(pace.step_time(), pace.slowdown)

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


class PacedScheduler(_Paced, ForetellSyncScheduler):
    """vLLM's own."""


class PacedCoScheduler(_Paced, CoSyncScheduler):
    """Offline requests beside online ones."""


class SecretLength(LogitsProcessor):  # type: ignore[misc]
    """Ends the answer of a request that has `LENGTH_KEY` with that many tokens, EOS included."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        config = vllm_config.model_config.hf_config
        self._eos = int(config.eos_token_id)
        self._rows: dict[int, tuple[int, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(
            self._rows,
            batch_update,
            lambda params, _, output: (
                (int(length), output)
                if (length := (params.extra_args or {}).get(LENGTH_KEY))
                else None
            ),
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._rows:
            logits[list(self._rows), self._eos] = -torch.inf
            ending = [
                row for row, (length, output) in self._rows.items() if len(output) + 1 >= length
            ]
            if ending:
                logits[ending] = -torch.inf
                logits[ending, self._eos] = 0.0
        return logits
