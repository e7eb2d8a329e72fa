"""The steps of an engine, inferred from the streams that come from it.

In a step every request that decodes gets one token. An event may have several tokens: engines
gather tokens before they send them, proxies gather events, and with speculative decoding a step
gives several. So steps are counted by tokens and not by events: between two events of a stream the
engine has made as many steps as the stream has got tokens. Of several streams the quickest one
counts; if they are not equally quick, as with speculative decoding, their mean.
"""

from math import inf
from typing import NamedTuple

from foretell.engine.stream_text import StreamPart, TextTokens

_SAME_STEP_S, _SAME_STEP = 0.0005, 0.1
"""A part so soon after the latest end, in seconds or as a share of a step, belongs to that end."""
_FIRST_GAP_S, _GAP_RATE, _MOST_GAPS = 0.02, 0.1, 10.0
"""Time between steps: initial, learning rate; longer pauses count as so many times the mean."""
_LONG_S = 1e6
_MOST_ENDS = 1000
"""The latest ends of steps that are kept until `take`."""
_LEARN_TOKENS = 8
_LEAST_PACE, _EVEN_PACE, _PACE_KEPT, _PACE_STEPS = 0.1, 0.9, 0.98, 32
"""Tokens per step: below the first a stream was held up and does not count; above the second
streams are equally quick. Then the decay of earlier ones, and the fewest steps that count."""
_MOST_TAKEN_BACK, _MOST_GUESSES = 2.0, 4
"""The most steps that are taken back at once, and how often for each stream."""
_BURST_KEPT, _SEVERAL = 0.95, 1.5
_SLIGHT = 1e-6


class StepEnds(NamedTuple):
    """The ends of steps since the last `take`, the oldest first."""

    ago_s: list[float]
    steps: list[int]
    """How many steps each end stands for: those since the end before."""
    since_ago_s: float
    """How long ago the end before the first was; 0: there was none."""


class ObservedStream:
    """The progress of one streamed answer."""

    __slots__ = ("came_s", "first_end", "is_stated", "seen", "text_bytes", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        """Of one sequence."""
        self.seen = 0.0
        """The number of the step that gave it its latest token."""
        self.first_end = -1
        self.is_stated = False
        """Whether its events state how many tokens it has."""
        self.text_bytes = 0
        self.came_s = inf
        """When its latest token came; infinite before the first."""


class StreamProgress:
    """All streams of one engine that one observer sees. Instants are of the observer's clock."""

    def __init__(self) -> None:
        self.streams: dict[str, ObservedStream] = {}
        self._texts = TextTokens()
        self._step = 0.0
        """The number of steps so far, by the quickest streams."""
        self._pace = [0.0, 0.0]
        """Tokens of streams, and the steps in which they got them; both decay."""
        self._burst = 1.0
        """About the most tokens that come together."""
        self._guesses = 0
        """How often steps may still be taken back."""
        self._untold = 0.0
        """Steps that have no entry in `_ends` yet."""
        self._count = 0
        self._since_s = self._ended_s = -inf
        self._gap_s = _FIRST_GAP_S
        self._ends: list[tuple[float, int]] = []

    def open(self, request_id: str) -> ObservedStream:
        """Add a request with a streamed answer."""
        stream = self.streams[request_id] = ObservedStream()
        return stream

    def came(self, stream: ObservedStream, part: StreamPart, now_s: float) -> None:
        """Take in a part of a stream."""
        past_s = min(_LONG_S, now_s - self._ended_s)
        together = past_s <= max(_SAME_STEP_S, _SAME_STEP * self._gap_s)
        is_first = not stream.tokens
        tokens = self._tokens_of(stream, part, together)
        if tokens <= 0.0:
            return
        if is_first:
            steps = self._first_steps(past_s)
        else:
            if past_s > self._gap_s / 2:
                self._take_back(stream.seen + tokens)
            steps = stream.seen + tokens - self._step
            self._learn_pace(stream, tokens, max(0.0, steps))
        if steps > _SLIGHT:
            ended = self._end_steps(steps, now_s, together)
            if ended and not is_first:
                gap_s = min(past_s / ended, _MOST_GAPS * self._gap_s)
                self._gap_s += _GAP_RATE * (gap_s - self._gap_s)
        if is_first:
            stream.first_end = self._count + (self._untold >= 1.0)
        stream.tokens += tokens
        stream.seen = self._step
        stream.came_s = now_s if steps > _SLIGHT else self._ended_s

    def _tokens_of(self, stream: ObservedStream, part: StreamPart, together: bool) -> float:
        """The new tokens of a part. The first part states the role and counts as one token."""
        if part.stated and (stream.is_stated or stream.tokens <= 1.0):  # not only at its end
            stream.is_stated = True
            return part.stated - stream.tokens
        if not part.texts:
            if not stream.tokens:
                return float(min(part.events, 1))
            is_more = not (stream.text_bytes or (together and stream.seen == self._step))
            return float(part.events if is_more else 0)
        tokens = self._texts.tokens(part)
        if stream.tokens and not stream.text_bytes:
            tokens -= 1.0  # the first part without text has counted as this token
        stream.text_bytes += part.text_bytes
        return tokens

    def _first_steps(self, past_s: float) -> float:
        """The new steps up to the one that gave a stream its first token, inferred from the time
        since the latest end: other streams may have shown that step, since new requests are last in
        an engine's output."""
        seen = [each.seen for each in self.streams.values() if each.tokens]
        self._guesses = min(self._guesses + len(seen), _MOST_GUESSES * len(seen))
        if not seen or (self._burst < _SEVERAL and self._step not in seen):
            return 1.0
        if self._burst < _SEVERAL:
            return float(past_s > self._gap_s / 2)
        return float(min(int(self._burst), int(past_s / self._gap_s)))

    def _take_back(self, step: float) -> None:
        """Correct the count of steps if a token of `step`, which has just come, is of no new step.

        Steps were counted too far then, as can happen where a stream begins between the events of
        others."""
        more = 1.0 + self._step - step
        exact = self._evenness == 1.0 and not self._texts.has_several
        if not (exact and self._guesses and 1.0 <= more <= _MOST_TAKEN_BACK):
            return
        self._guesses -= 1
        for each in self.streams.values():
            if each.seen > self._step - more:
                each.seen -= more
        self._step -= more
        self._untold -= more

    def _learn_pace(self, stream: ObservedStream, tokens: float, more: float) -> None:
        self._burst = max(tokens, _BURST_KEPT * self._burst)
        steps = self._step + more - stream.seen
        if tokens > _LEAST_PACE * steps:
            had, made = self._pace
            self._pace = [_PACE_KEPT * had + tokens, _PACE_KEPT * made + steps]

    @property
    def _evenness(self) -> float:
        """Mean steps of a stream for each step of the quickest; 1 if equally quick."""
        tokens, steps = self._pace
        if steps < _PACE_STEPS or tokens > _EVEN_PACE * steps:
            return 1.0
        return tokens / steps

    def _end_steps(self, steps: float, now_s: float, together: bool) -> int:
        """Note that `steps` have ended since the latest end; returns how many `take` will add."""
        self._step += steps
        self._untold += steps * self._evenness
        whole = int(self._untold + _SLIGHT)
        if whole < (self._burst if self._texts.has_several else 1):
            return 0
        self._untold -= whole
        before = 0
        if together and self._ends:
            before = self._ends.pop()[1]
        else:
            self._count += 1
        self._ends.append((now_s, before + whole))
        del self._ends[:-_MOST_ENDS]
        self._ended_s = now_s
        return whole

    def close(self, request_id: str, output_tokens: float, now_s: float) -> float:
        """Remove an answer that has ended; returns how many seconds ago its last token came.

        `output_tokens` are those of one sequence; 0 if unknown."""
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return 0.0
        if stream.text_bytes and output_tokens >= _LEARN_TOKENS:
            self._texts.learn(stream.text_bytes, output_tokens)
        return max(0.0, now_s - stream.came_s)

    def tokens(self) -> list[int]:
        """The tokens of each stream at the latest end, including tokens of steps that other streams
        have shown and that this one has yet to get."""
        return [self._tokens_by_now(stream) for stream in self.streams.values()]

    def _tokens_by_now(self, stream: ObservedStream) -> int:
        if not stream.tokens:
            return 0
        unseen = min(self._burst - 1.0, (self._step - stream.seen) * self._evenness)
        return max(1, round(stream.tokens + unseen - int(self._untold)))

    def first_ends(self) -> list[int]:
        """For each stream, which of the ends of the next `take`, from 1, gave it its first token;
        0: none of them."""
        taken = self._count - len(self._ends)
        return [max(0, stream.first_end - taken) for stream in self.streams.values()]

    def take(self, now_s: float) -> StepEnds:
        """Return the ends since the last call, and forget them."""
        ends, self._ends = self._ends, []
        since_ago_s = max(0.0, now_s - self._since_s) if self._since_s > -inf else 0.0
        self._since_s = self._ended_s
        ago_s, steps = [now_s - end_s for end_s, _ in ends], [steps for _, steps in ends]
        return StepEnds(ago_s, steps, min(_LONG_S, since_ago_s))
