"""What the streams that come from one engine show of its steps.

In a step every request that decodes gets one token, and each token of a stream comes as one event.
So a step has ended when some stream has another event.
"""

from math import inf

_SAME_STEP_S = 0.0005
"""Events of one stream that are so close belong to one step: its first ones, and its last."""
_FIRST_GAP_S, _GAP_RATE, _MOST_GAPS = 0.02, 0.1, 10.0
"""Time between steps, as it is learned; a pause counts as so many times that."""
_LONG_S = 1e6
_MOST_ENDS = 1000
"""Ends of steps that are kept until somebody asks, the latest."""
_LEARN_EVENTS, _LEARN_RATE = 8, 0.2


class Stream:
    """The answer to one request, as it comes."""

    __slots__ = ("came_s", "events", "first_step", "step")

    def __init__(self) -> None:
        self.events = 0
        self.step = self.first_step = -1
        self.came_s = inf
        """When the step ended that its latest event is of; infinite: none has come."""


class StreamProgress:
    """All streams of one engine that one observer sees. Instants are of its own clock."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.tokens_per_event = 1.0
        """Above 1 where the engine gathers tokens before it sends them."""
        self._step = 0
        self._ended_s = -inf
        self._gap_s = _FIRST_GAP_S
        self._ends_s: list[float] = []

    def open(self, request_id: str) -> Stream:
        """A request whose answer is a stream goes to the engine."""
        stream = self.streams[request_id] = Stream()
        return stream

    def came(self, stream: Stream, events: int, now_s: float) -> None:
        """So many of its events have come."""
        past_s = min(_LONG_S, now_s - self._ended_s)
        again = stream.step == self._step
        if not events or (again and past_s <= _SAME_STEP_S):
            return
        if not stream.events:
            events = 1  # the first ones tell who speaks
        if again or (not stream.events and self._begins(past_s)):
            self._end_steps(events if past_s < _MOST_GAPS * self._gap_s else 1, past_s, now_s)
        stream.step, stream.came_s = self._step, self._ended_s
        if not stream.events:
            stream.first_step = self._step
        stream.events += events

    def _end_steps(self, steps: int, past_s: float, now_s: float) -> None:
        """So many have ended since the latest; events that are read together came one by one."""
        self._gap_s += _GAP_RATE * (min(past_s / steps, _MOST_GAPS * self._gap_s) - self._gap_s)
        self._step += steps
        self._ends_s += [now_s - past_s * left / steps for left in range(steps - 1, -1, -1)]
        del self._ends_s[:-_MOST_ENDS]
        self._ended_s = now_s

    def close(self, request_id: str, output_tokens: int, now_s: float) -> float:
        """The answer has ended, with so many tokens, 0: nobody knows; how long ago it had the last
        one, as far as its stream shows."""
        stream = self.streams.pop(request_id, None)
        if stream is not None and output_tokens and stream.events >= _LEARN_EVENTS:
            seen = output_tokens / stream.events
            self.tokens_per_event += _LEARN_RATE * (max(1.0, seen) - self.tokens_per_event)
        return max(0.0, now_s - stream.came_s) if stream is not None else 0.0

    def _begins(self, past_s: float) -> bool:
        """Whether the first event of a stream is the first of its step: engines tell of new
        requests last, so it is not where others have just told of the same step."""
        if past_s > self._gap_s / 2:
            return True
        return not any(each.step == self._step for each in self.streams.values())

    def first_steps(self) -> list[int]:
        """Of each stream the number of the step that gave it its first token, among those that
        `take` gives next, counted from 1; 0: none of them."""
        taken = self._step - len(self._ends_s)
        return [max(0, stream.first_step - taken) for stream in self.streams.values()]

    def take(self, now_s: float) -> list[float]:
        """How long ago the steps ended of which nobody was told yet, the oldest first."""
        ends_s, self._ends_s = self._ends_s, []
        return [now_s - end_s for end_s in ends_s]
