"""When each batch will be done, as one worker sees it: nothing of it outlives the process."""

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
"""Requests of a batch from which its lengths are known; before, those of its model count."""
_MOST_MODELS = 256


class Promises:
    """Learns from records how much work requests are and how fast it is done."""

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
        """Each batch that has not ended: Unix seconds at which it is due, and seconds that all work
        up to its end still takes, at the promised confidence; None: not known."""
        self._quoted: dict[str, float] = {}
        """The ends quoted for batches when they were created."""
        self._expected: dict[str, tuple[float, Expected]] = {}
        """When, and what was expected."""
        self._correction = Correction()
        self._before = 0.0
        """Tokens that are left of all batches in progress."""

    def quote(self, batch_id: str, requests: int, model: str, now_unix_s: float) -> None:
        """Predict the end of a new batch of about so many requests, as far as its model's
        requests are known."""
        lengths = self._of_model.get(model, BatchLengths())
        estimate = expected(requests, self._before, lengths, self._pace, self._in_flight)
        if requests and estimate is not None:
            self._expected[batch_id] = now_unix_s, estimate
            self._quoted[batch_id] = now_unix_s + self._correction.promised_s(estimate)

    def learn(self, batch: Batch, records: Sequence[Record]) -> None:
        """These requests of a batch have ended."""
        model = batch.model or ""
        if len(self._of_model) >= _MOST_MODELS:
            self._of_model.clear()
        for record in records:
            tokens = record.usage.input_tokens + record.usage.output_tokens
            self._tokens += tokens
            for known, name in ((self._of_batch, batch.id), (self._of_model, model)):
                known[name] = known.get(name, BatchLengths()).with_more(tokens)

    def tick(self, now_s: float, in_flight: int) -> None:
        """Time passes, on a clock that is never set; so many requests are on their way."""
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
        """Look again at batches in progress, in the order in which they are worked on, and forget
        others but for those that are being validated.

        What was quoted at creation holds until the rest can be done sooner, or until it has turned
        out to be wrong.
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
        self._of_batch = {name: each for name, each in self._of_batch.items() if name in known}

    def _due_unix_s(self, batch: Batch, now_unix_s: float) -> float:
        """The end that was promised first, while it can be kept, or else the batch's own."""
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
        """Whether a batch all of whose requests have ended now did so by the first promise; None:
        there was none. To be asked before `renew` forgets the batch."""
        if batch_id in self._expected:
            then_unix_s, estimate = self._expected[batch_id]
            self._correction.learn(estimate, now_unix_s - then_unix_s)
        first = self._first.pop(batch_id, None)
        return None if first is None else now_unix_s <= first

    def done_by(self, batch_id: str) -> float | None:
        """When a batch is predicted to be done, Unix seconds; None while nothing is known."""
        return self._done_by.get(batch_id, self._quoted.get(batch_id))

    def shown(self, batch: Batch) -> dict[str, float | bool] | None:
        """The predicted end of a batch; None while nothing can be promised.

        Of a batch that will not be done in time, when it could be.
        """
        done_by = self.done_by(batch.id)
        if done_by is None or batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
            return None
        in_time = done_by <= batch.expires_unix_s
        return {"done_by": ceil(done_by), "confidence": CONFIDENCE, "in_time": in_time}
