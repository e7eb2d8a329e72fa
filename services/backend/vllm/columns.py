"""Serializes the columns of a queue of requests. Runs in the engine's hot loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foretell.cosched.deadlines import Targets
from foretell.services.backend.vllm.packing import length_first, sized
from foretell.services.backend.vllm.reading import Queue
from foretell.v1 import snapshot_pb2

ID_KEY = "foretell_id"
PREDICTED_KEY = "foretell_predicted_tokens"

_MAX_ID_LENGTH = 256
_UINT32_MAX = 2**32 - 1
_SINT32_MAX = 2**31 - 1

# What never changes in a request's life: id, foretell_id, prompt_tokens, max_tokens, priority,
# predicted_output_tokens, arrival_unix_s, LoRA adapter.
Facts = tuple[str, str, int, int, int, float, float, int]


class Columns:
    """Packs the columns of one queue, and reuses what has not changed since the last snapshot.

    While the queue holds the same requests and none was admitted, only four columns change.
    Preemptions and prefix-cache hits, for example, change only with an admission.
    """

    def __init__(
        self,
        field: str,
        facts: dict[str, Facts],
        cached: Mapping[str, int],
        learn_inputs: Callable[[Any], None] | None,
        *,
        targets: Callable[[Any], Targets] | None,
        adapters: bool,
    ) -> None:
        """`field`: the queue's field in a snapshot. `learn_inputs` is called with each new request.

        `targets` returns a request's targets; None if the engine does not use them. `adapters`:
        whether the engine uses LoRA adapters.
        """
        self._tag = length_first(snapshot_pb2.EngineSnapshot, field)
        self._learn_inputs = learn_inputs
        self._targets, self._adapters = targets, adapters
        self._facts = facts
        self._cached = cached
        self._requests: list[Any] = []
        self.ids: Sequence[str] = ()
        """The ids of the requests learned last."""
        self._constant = b""

    def forget(self) -> None:
        """Rebuild the constant columns next time, because a request was admitted."""
        self._requests = []

    def learn(self, queue: Queue) -> bool:
        """Build the constant columns if the requests are others than the last; return whether."""
        if self._requests == queue.requests:
            return False
        self._build(queue)
        return True

    def packed(self, queue: Queue, tokens: Mapping[str, int], more: bytes) -> bytes:
        """Serialize the field of the requests learned last; `tokens` were scheduled, by request id.

        `more`: further columns, serialized.
        """
        output, computed, placeholders, _ = zip(*queue.rows, strict=True)
        varying = snapshot_pb2.RequestColumns(
            output_tokens=output,
            computed_tokens=computed,
            scheduled_tokens=[tokens.get(i, 0) for i in self.ids],
            in_flight_tokens=placeholders,
        )
        return self._tag + sized(self._constant + varying.SerializeToString() + more)

    def _build(self, queue: Queue) -> None:
        known, requests = self._facts, queue.requests
        rows = [known.get(r.request_id) or self._learn(r) for r in requests]
        facts = tuple(zip(*rows, strict=True))
        ids, foretell_ids, prompts, limits, priorities, predicted, arrivals, adapters = facts
        targets = [self._targets(r).or_zero_s for r in requests] if self._targets else []
        self._requests = requests
        self.ids = ids
        self._constant = snapshot_pb2.RequestColumns(
            request_id=ids,
            foretell_id=foretell_ids,
            prompt_tokens=prompts,
            cached_tokens=[self._cached.get(i, 0) for i in ids],
            max_tokens=limits,
            priority=priorities,
            predicted_output_tokens=predicted,
            arrival_unix_s=arrivals,
            preemptions=[row[3] for row in queue.rows],
            ttft_target_s=[ttft_s for ttft_s, _ in targets],
            tpot_target_s=[tpot_s for _, tpot_s in targets],
            adapter=adapters if self._adapters else (),
        ).SerializeToString()

    def _learn(self, request: Any) -> Facts:
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        facts = (
            request.request_id,
            clean_id(extra.get(ID_KEY)),
            request.num_prompt_tokens,
            min(request.max_tokens, _UINT32_MAX),
            max(-_SINT32_MAX, min(request.priority, _SINT32_MAX)),
            clean_prediction(extra.get(PREDICTED_KEY)),
            request.arrival_time,
            request.lora_request.lora_int_id if request.lora_request else 0,
        )
        self._facts[request.request_id] = facts
        if self._learn_inputs:
            self._learn_inputs(request)
        return facts


def clean_id(value: Any) -> str:
    """`value` if it can be an id, else empty: clients can put anything into `vllm_xargs`."""
    usable = isinstance(value, str) and value.isascii() and len(value) <= _MAX_ID_LENGTH
    return str(value) if usable else ""


def clean_prediction(value: Any) -> float:
    """`value` as a token count; 0 (no prediction) if it is none."""
    try:
        tokens = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(tokens, float(_UINT32_MAX)) if math.isfinite(tokens) and tokens > 0 else 0.0
