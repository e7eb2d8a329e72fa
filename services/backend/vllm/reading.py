"""What the engine's thread reads of its requests at one step, to be published later."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vllm.v1.request import RequestStatus

from foretell.model import BatchShape
from foretell.services.backend.vllm.shape import batch_shape, shape_of

_AWAITS_GRAMMAR = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


Row = tuple[int, int, int, int]
"""What changes in a request's life: output tokens, computed tokens, output tokens expected of steps
in flight (vLLM's placeholders), preemptions."""


class Queue(NamedTuple):
    """The requests of one queue, in its order, with a row for each of them."""

    requests: list[Any]
    rows: list[Row]
    await_grammar: list[bool]
    """Whether each request awaits its grammar; empty for running requests."""

    @property
    def may_change(self) -> bool:
        """Whether rows of waiting requests may change, for example by output after a preemption."""
        return any(self.await_grammar) or any(row[3] for row in self.rows)


class Reading(NamedTuple):
    """All requests after a step was scheduled."""

    running: Queue
    waiting: Queue | None
    """None if there were too many to read at this step."""
    free_blocks: int
    shape: BatchShape | None
    """None if it follows from `running`."""

    def shape_of(self, output: Any) -> BatchShape:
        """The shape of the step `output`."""
        tokens: Mapping[str, int] = output.num_scheduled_tokens
        return self.shape or shape_of(
            (tokens[request.request_id], row[1], request.num_prompt_tokens, 0)
            for request, row in zip(self.running.requests, self.running.rows, strict=True)
            if request.request_id in tokens
        )


EMPTY = Queue([], [], [])


class RequestReader:
    """Reads the requests of one scheduler. Runs in the engine's hot loop."""

    def __init__(
        self, scheduler: Any, waiting: Callable[[], list[Any]], *, has_drafts: bool, most: int
    ) -> None:
        """`waiting` lists the waiting requests in admission order.

        Beyond `most` requests, waiting ones are read only at every second, third, ... step.
        """
        self._scheduler = scheduler
        self._list_waiting = waiting
        self._free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self._has_drafts, self._most = has_drafts, most
        self._waiting = EMPTY
        self._waiting_may_change = False
        self._steps = 0

    @property
    def waiting(self) -> list[Any]:
        """The waiting requests read last."""
        return self._waiting.requests

    def read(self, output: Any) -> Reading:
        """Read them after the step `output` was scheduled."""
        requests = list(self._scheduler.running)
        running = Queue(requests, _rows(requests), [])
        waiting = self._list_waiting()
        self._steps += 1
        is_read = self._steps * self._most > len(requests) + len(waiting)
        if is_read:
            self._steps = 0
            if self._waiting_may_change or waiting != self._waiting.requests:
                self._waiting = self._read_waiting(waiting)
                self._waiting_may_change = self._waiting.may_change
        else:
            self._waiting_may_change = True  # one may leave and come back meanwhile
        shape = None
        if self._has_drafts:
            drafts = output.scheduled_spec_decode_tokens
            shape = batch_shape(output.num_scheduled_tokens, self._scheduler.requests, drafts)
        queue = self._waiting if is_read else None
        return Reading(running, queue, self._free_blocks(), shape)

    def _read_waiting(self, waiting: list[Any]) -> Queue:
        """Read only new requests if, since the last time, others have left only from the front."""
        before, known = self._waiting, 0
        if waiting and not self._waiting_may_change and waiting[0] in before.requests:
            left = before.requests.index(waiting[0])
            known = len(before.requests) - left
            if waiting[:known] != before.requests[left:]:
                known = 0
        came = waiting[known:]
        rows, flags = _rows(came), [each.status is _AWAITS_GRAMMAR for each in came]
        if known:
            rows, flags = before.rows[left:] + rows, before.await_grammar[left:] + flags
        return Queue(waiting, rows, flags)


def _rows(requests: list[Any]) -> list[Row]:
    return [
        (
            len(each._output_token_ids),  # saves a call per request
            each.num_computed_tokens,
            each.num_output_placeholders,
            each.num_preemptions,
        )
        for each in requests
    ]
