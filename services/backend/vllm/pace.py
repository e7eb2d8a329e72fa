"""Whether the running requests go on as before, so that they need not be read.

A step is even when it computes one token of every running request, after its prompt. While there
are only even steps of the same requests, and only output of such steps, all requests grow alike.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from foretell.model import BatchShape

if TYPE_CHECKING:
    from foretell.services.backend.vllm.reading import Row

_MOST_UNREAD = 64
"""Steps after which requests are read anyway, in case an engine does something unforeseen."""


class Pace:
    """Follows whether the steps of an engine are even, in its hot loop."""

    def __init__(self, *, in_flight: int) -> None:
        """`in_flight`: steps that are scheduled before the output of the first is known."""
        self._in_flight = in_flight
        self._running: list[Any] = []
        self._uneven = in_flight  # steps until only output of even steps is pending
        self._pairs = 0  # decode pairs of the last step while `_uneven` is 0, else 0
        self._first_computed = 0  # computed tokens of the first running request

    def goes_on(self, output: Any, running: Sequence[Any]) -> int:
        """The decode pairs of the step `output` if it is even, like those before it; else 0.

        After 0, `read` must be called.
        """
        count = len(output.num_scheduled_tokens)
        if (
            self._pairs
            and output.total_num_scheduled_tokens == count == len(running)
            # A spot check, in case the step before was missed.
            and running[0].num_computed_tokens == self._first_computed + 1
            and self._running == running
        ):
            self._pairs += count
            self._first_computed += 1
            return self._pairs
        return 0

    def read(self, output: Any, running: list[Any], rows: "Sequence[Row]") -> None:
        """Note that all running requests were read at the step `output`."""
        tokens: Mapping[str, int] = output.num_scheduled_tokens
        is_even = (
            output.total_num_scheduled_tokens == len(tokens) == len(running)
            and self._running == running
            and all(row[1] > r.num_prompt_tokens for r, row in zip(running, rows, strict=True))
        )
        self._running = running
        self._uneven = max(0, self._uneven - 1) if is_even else self._in_flight
        self._pairs = 0
        if running and not self._uneven:
            self._pairs, self._first_computed = sum(row[1] for row in rows), rows[0][1]


class Growth(NamedTuple):
    """By how many tokens each running request has grown since the requests were read last."""

    computed: int
    output: int


class Growing:
    """Counts by how much the running requests have grown. Steps may be reported to it late."""

    def __init__(self) -> None:
        self._running: list[Any] = []
        # Outputs in flight of even steps of these requests: two, or one per pipeline stage.
        self._even: deque[Any] = deque(maxlen=_MOST_UNREAD)
        self._computed = self._output = self._unread = 0
        self._alike = False

    def began(self, output: Any) -> None:
        """Note that `output` is an even step of the same requests as before."""
        self._computed += 1
        self._even.append(output)

    def read(self, output: Any, running: list[Any], shape: BatchShape) -> None:
        """Note that these requests were read at the step `output`, which has this shape."""
        if self._running != running:
            self._running = running
            self._even.clear()
        if shape.decode_seqs == len(running) and not shape.prefill_seqs:
            self._even.append(output)
        self._alike = False

    def updating(self, output: Any, sampled: Any) -> None:
        """`update_from_output()` is about to append the tokens of `output` to the requests."""
        if self._even and self._even[0] is output:
            self._even.popleft()
            self._output += 1
            self._alike &= all(map(len, sampled.sampled_token_ids))
        elif output.num_scheduled_tokens:
            self._alike = False
            if any(each is output for each in self._even):
                while self._even.popleft() is not output:  # those before were lost
                    pass

    def growth(self) -> Growth | None:
        """By how much all have grown since `anew`; None: they have to be read again."""
        self._unread += 1
        if self._alike and self._unread < _MOST_UNREAD:
            return Growth(self._computed, self._output)
        return None

    def anew(self) -> None:
        """Count from here, because what was read has been published."""
        self._computed = self._output = self._unread = 0
        self._alike = True
