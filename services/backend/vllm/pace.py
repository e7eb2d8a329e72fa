"""Whether the running requests go on as before: then nothing of them has to be read."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foretell.model import BatchShape

_MOST_UNREAD = 64
"""Steps after which requests are read all the same, should an engine do what nobody foresaw."""


class Growth(NamedTuple):
    """By how many tokens each running request has grown since the requests were read last."""

    computed: int
    output: int


class Pace:
    """Follows whether the same requests decode one token each, step after step.

    A step is even when it computes one token of every running request, behind its prompt. Between
    even steps of the same requests, and with the output of such steps only, all have grown alike.
    `goes_on` may be far ahead of the steps that the other methods are told of, and called by
    another thread.
    """

    def __init__(self) -> None:
        self._running: list[Any] = []
        self._pairs = 0  # decode pairs of the last step, where it was even
        self._first_computed = 0  # tokens of the first of them
        self._others = False  # they are not those of the step before
        # The outputs of even steps of these requests, in flight: vLLM holds two, or some.
        self._even: deque[Any] = deque(maxlen=_MOST_UNREAD)
        self._computed = self._output = self._unread = 0
        self._alike = False

    def goes_on(self, output: Any, running: Sequence[Any]) -> int:
        """The decode pairs of the step `output` where it is as even as the one before, else 0.

        After 0, `read` must be told the shape, else `began` of the step.
        """
        tokens: Mapping[str, int] = output.num_scheduled_tokens
        count = len(tokens)
        if self._running != running:
            self._running = list(running)
            self._others = True
        elif (
            self._pairs
            and output.total_num_scheduled_tokens == count == len(running)
            # As a sample, should the step before have escaped us.
            and running[0].num_computed_tokens == self._first_computed + 1
        ):
            self._pairs += count
            self._first_computed += 1
            return self._pairs
        return 0

    def began(self, output: Any) -> None:
        """`output` is a step that went on."""
        self._computed += 1
        self._even.append(output)

    def read(self, output: Any, shape: BatchShape) -> None:
        """The shape of the step was read off its requests."""
        self._alike = False
        if self._others:
            self._others = False
            self._even.clear()
        is_even = shape.decode_seqs == len(self._running) and not shape.prefill_seqs
        self._pairs = shape.decode_pairs if is_even else 0
        if self._pairs:
            self._first_computed = self._running[0].num_computed_tokens
            self._even.append(output)

    def updating(self, output: Any, sampled: Any) -> None:
        """`update_from_output()` is about to append to the requests what `output` gave."""
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
        """What all have grown by since `anew`; None: they have to be read now."""
        self._unread += 1
        if self._alike and self._unread < _MOST_UNREAD:
            return Growth(self._computed, self._output)
        return None

    def anew(self) -> None:
        """All requests are read now."""
        self._computed = self._output = self._unread = 0
        self._alike = True
