"""When each batch of one worker will be done. Nothing is kept beyond the life of the process."""

from collections.abc import Sequence
from math import ceil

from foretell.batch.promise import (
    CONFIDENCE,
    BatchLengths,
    BatchPace,
    Correction,
    Expected,
    expected,
)
from foretell.batch.records import Record
from foretell.batch.states import Batch, Status

_INTERVAL_S = 1.0
_ENOUGH = 30
"""Ended requests from which a batch's own lengths count; before, those of its model count."""
_MOST_MODELS = 256


class Promises:
    """Learns from records how much work each request is and how fast work is done."""

    def __init__(self) -> None:
        self._pace = BatchPace()
        self._of_batch: dict[str, BatchLengths] = {}
        self._of_model: dict[str, BatchLengths] = {}
        self._tokens = 0
        self._request_s = 0.0
        self._in_flight = 0
        self._since_s = self._ticked_s = 0.0
        self._first: dict[str, float] = {}
        self._done_by: dict[str, float] = {}
        self.due: list[tuple[float, float | None]] = []
        """For each batch that has not ended: the Unix seconds at which it is due, and the seconds
        that all work up to its end still takes, at the promised confidence; None if unknown."""
        self._quoted: dict[str, float] = {}
        """The ends quoted for batches when they were created."""
        self._expected: dict[str, tuple[float, Expected]] = {}
        """For each batch the Unix seconds of its quote, and what was expected then."""
        self._correction = Correction()
        self._before = 0.0
        """Tokens left of all batches in progress."""

    def quote(self, batch_id: str, requests: int, model: str, now_unix_s: float) -> None:
        """Predict the end of a new batch of about `requests` requests, if enough is known about
        requests for its model."""
        lengths = self._of_model.get(model, BatchLengths())
        estimate = expected(requests, self._before, lengths, self._pace, self._in_flight)
        if requests and estimate is not None:
            self._expected[batch_id] = now_unix_s, estimate
            self._quoted[batch_id] = now_unix_s + self._correction.promised_s(estimate)

    def learn(self, batch: Batch, records: Sequence[Record]) -> None:
        """Learn from requests of a batch that have ended."""
        model = batch.model or ""
        if len(self._of_model) >= _MOST_MODELS:
            self._of_model.clear()
        for record in records:
            tokens = record.usage.input_tokens + record.usage.output_tokens
            self._tokens += tokens
            for known, name in ((self._of_batch, batch.id), (self._of_model, model)):
                known[name] = known.get(name, BatchLengths()).with_more(tokens)

    def tick(self, now_s: float, in_flight: int) -> None:
        """Advance to `now_s` on a monotonic clock; `in_flight` counts from now on."""
        self._request_s += self._in_flight * (now_s - self._ticked_s)
        self._ticked_s, self._in_flight = now_s, in_flight
        if now_s < self._since_s + _INTERVAL_S:
            return
        if self._request_s:
            self._pace.add(self._tokens, self._request_s, now_s - self._since_s)
        else:
            self._pace.pause()
        self._tokens, self._request_s, self._since_s = 0, 0.0, now_s

    def renew(
        self, running: Sequence[Batch], validating: Sequence[Batch], now_unix_s: float
    ) -> None:
        """Predict the ends of `running` batches again, in the order in which they are worked on,
        and forget those that are neither running nor being validated.

        The end quoted at creation holds until an earlier one is predicted, or until it has passed.
        """
        before = 0.0
        self._done_by, self.due = {}, []
        for batch in running:
            left_s = None
            lengths = self._of_batch.get(batch.id, BatchLengths())
            if lengths.ended < _ENOUGH:
                lengths = self._of_model.get(batch.model or "", BatchLengths())
            estimate = expected(batch.counts.left, before, lengths, self._pace, self._in_flight)
            if estimate is not None:
                left_s = self._correction.promised_s(estimate)
                done_by = now_unix_s + left_s
                first = self._quoted.get(batch.id, done_by)
                self._first.setdefault(batch.id, first)
                self._done_by[batch.id] = min(done_by, first) if first > now_unix_s else done_by
            self.due.append((self._due_unix_s(batch, now_unix_s), left_s))
            if lengths.ended:
                before += batch.counts.left * lengths.mean
        self._before = before
        for batch in validating:
            quoted = self._quoted.get(batch.id)
            left_s = None if quoted is None else max(0.0, quoted - now_unix_s)
            self.due.append((self._due_unix_s(batch, now_unix_s), left_s))
        known = {batch.id for batch in running}
        still = known.union(batch.id for batch in validating)
        self._quoted = {name: at for name, at in self._quoted.items() if name in still}
        self._expected = {
            name: estimate for name, estimate in self._expected.items() if name in self._quoted
        }
        self._first = {name: at for name, at in self._first.items() if name in known}
        self._of_batch = {name: each for name, each in self._of_batch.items() if name in known}

    def _due_unix_s(self, batch: Batch, now_unix_s: float) -> float:
        """The end promised first if it lies between now and the deadline, else the deadline."""
        first = self._first.get(batch.id, self._quoted.get(batch.id, 0.0))
        return first if now_unix_s < first < batch.expires_unix_s else float(batch.expires_unix_s)

    def late(self, running: Sequence[Batch]) -> int:
        """How many of these batches are predicted to end after they expire."""
        return sum(self._done_by.get(each.id, 0.0) > each.expires_unix_s for each in running)

    def left_s(self, running: Sequence[Batch], now_unix_s: float) -> float:
        """Seconds until all of these batches are predicted to be done; 0 while nothing is known."""
        ends = (self._done_by.get(each.id, now_unix_s) for each in running)
        return max(0.0, max(ends, default=now_unix_s) - now_unix_s)

    def kept(self, batch_id: str, now_unix_s: float) -> bool | None:
        """Whether a batch whose requests have all ended now has kept its first promise; None if
        there was none. Learns from its end. Call it before `renew` forgets the batch."""
        if batch_id in self._expected:
            then_unix_s, estimate = self._expected[batch_id]
            self._correction.learn(estimate, now_unix_s - then_unix_s)
        first = self._first.pop(batch_id, None)
        return None if first is None else now_unix_s <= first

    def done_by(self, batch_id: str) -> float | None:
        """When a batch is predicted to be done, Unix seconds; None while nothing is known."""
        return self._done_by.get(batch_id, self._quoted.get(batch_id))

    def shown(self, batch: Batch) -> dict[str, float | bool] | None:
        """The predicted end of a batch as clients see it; None while nothing can be promised.

        The end of a late batch is predicted as if the batch did not expire.
        """
        done_by = self.done_by(batch.id)
        if done_by is None or batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
            return None
        in_time = done_by <= batch.expires_unix_s
        return {"done_by": ceil(done_by), "confidence": CONFIDENCE, "in_time": in_time}
