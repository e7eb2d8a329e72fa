"""What the predictor beside an engine knows of it and publishes to schedulers."""

from collections.abc import Callable
from math import inf

import numpy as np

from foretell.engine.ledger import Ledger, Observed
from foretell.engine.predictor import load_of
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.published import Snapshot, figures_of, offline_blocks
from foretell.engine.snapshots import PackedRows, packed_rows
from foretell.kernel.snapshot_rows import REQUEST
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import Row
from foretell.model import (
    EngineSnapshot,
    LengthEstimate,
    Load,
    RequestSpec,
    RequestTable,
    Slo,
)


class SnapshotPredictor:
    """Hears one engine's snapshots, keeps its ledger, and publishes both. Time is an argument.

    `length_row` makes a distribution of an estimate (`foretell.length.distribution.knots`);
    `prior_tokens` is the mean output length of requests without an estimate.
    `dispatch_delay_s` is that of `Ledger`.
    """

    def __init__(
        self,
        *,
        dispatch_delay_s: float,
        length_row: Callable[[LengthEstimate], Row],
        prior_tokens: float,
    ) -> None:
        self.ledger = Ledger(dispatch_delay_s)
        self.snapshot: EngineSnapshot | None = None
        self.heard_unix_s = 0.0
        self.length_row = length_row
        """Makes a distribution of an estimate."""
        self._prior_tokens = prior_tokens
        self._prior_row = length_row(LengthEstimate(prior_tokens))
        self._rows: PackedRows | None = None  # of the latest snapshot, made when needed

    @property
    def dispatch_delay_s(self) -> float:
        """Seconds from a prediction to the request's arrival in the engine's queue, as learned."""
        return self.ledger.dispatch_delay_s

    @property
    def is_busy(self) -> bool:
        """Whether the latest snapshot shows requests."""
        return self.snapshot is not None and bool(self.snapshot.running or self.snapshot.waiting)

    def age_s(self, now_unix_s: float) -> float:
        """Seconds since the engine was last heard from."""
        return max(0.0, now_unix_s - self.heard_unix_s)

    def hear(self, snapshot: EngineSnapshot) -> bool:
        """Take in a snapshot; False if it is older than the latest one."""
        known = self.snapshot
        same_run = known is not None and known.engine_run_id == snapshot.engine_run_id
        if known is not None and same_run and snapshot.sequence < known.sequence:
            return False
        self.heard_unix_s = max(self.heard_unix_s, snapshot.published_unix_s)
        if known is not None and same_run and snapshot.sequence == known.sequence:
            return True  # a heartbeat: the engine is alive, its state unchanged
        if not same_run:
            caches = snapshot.config.enable_prefix_caching
            self.ledger.restart(
                PrefixIndex(snapshot.config) if caches else None,
                co_schedules=snapshot.config.co_schedules,
            )
        before, self.snapshot = known if same_run else None, snapshot
        self._rows = None
        for rows in (snapshot.running, snapshot.waiting):
            self._see(RequestTable.of(rows), snapshot.taken_unix_s, before)
        self._see_hits(RequestTable.of(snapshot.running))
        return True

    def reserve(self, request: RequestSpec, now_unix_s: float, ttl_s: float) -> None:
        """Count `request` as on its way for `ttl_s`, unless a snapshot has already shown it."""
        row = self.length_row(request.length)
        self.ledger.reserve(request, row, now_unix_s, now_unix_s, now_unix_s + ttl_s)

    def complete(self, request_id: str, *, answered: bool = False) -> Observed:
        """Note that the request has ended (`Ledger.complete`)."""
        return self.ledger.complete(request_id, answered=answered)

    def load(self, now_unix_s: float) -> Load | None:
        """The engine's load, reservations included; None before the first snapshot."""
        if self.snapshot is None:
            return None
        self.ledger.expire(now_unix_s)
        header, requests, _ = self._packed(self.snapshot)
        config, figures = self.snapshot.config, figures_of(header)
        running = np.frombuffer(requests, REQUEST, figures.running)
        offline = offline_blocks(running) if config.co_schedules else 0
        reserved = self.ledger.reserved, self.ledger.reserved_blocks(config)
        return load_of(config, figures, *reserved, offline)

    def silent_s(self, step_time: StepTimeModel, now_unix_s: float) -> float:
        """For how many seconds the engine may have made steps that it has not reported yet.

        It reports pure decode steps within `reported_within_s`, and other steps, or decode steps
        longer than that, within `reported_soon_s`. Longer silence means that a step still runs.
        """
        snapshot = self.snapshot
        if snapshot is None or not snapshot.steps_in_flight:
            return 0.0
        within_s = snapshot.config.reported_within_s
        shape = snapshot.steps_in_flight[-1].shape
        if shape.prefill_seqs or not 0.0 < step_time.step_s(shape) < within_s:
            within_s = snapshot.config.reported_soon_s
        return max(0.0, min(within_s, now_unix_s - snapshot.published_unix_s))

    def publish(
        self,
        step_time: StepTimeModel,
        now_unix_s: float,
        step_error: tuple[float, float] = (0.0, 0.0),
        calibration_steps: int = 0,
    ) -> Snapshot | None:
        """Return what is known of the engine now; None before its first snapshot.

        `step_time` is the calibrated model; the other arguments are fields of `Snapshot`.
        """
        engine = self.snapshot
        if engine is None:
            return None
        self.ledger.expire(now_unix_s)
        return Snapshot(
            engine.instance_id,
            engine.config,
            engine.taken_unix_s,
            *self._packed(engine),
            self.ledger.rows(),
            self.ledger.expected(now_unix_s + self.dispatch_delay_s),
            self.dispatch_delay_s,
            step_time.packed(),
            step_error,
            calibration_steps,
        )

    def _packed(self, snapshot: EngineSnapshot) -> PackedRows:
        """The rows of the latest snapshot, with lengths and prefix-cache hits as believed."""
        if self._rows is None:
            running, waiting = RequestTable.of(snapshot.running), RequestTable.of(snapshot.waiting)
            prefixes, cached_tokens = self.ledger.prefixes, None
            if prefixes is not None and prefixes.pending:
                believed = map(prefixes.believed, waiting.foretell_id)
                cached_tokens = list(map(max, waiting.cached_tokens, believed))
            lengths = [row for table in (running, waiting) for row in self._length_rows(table)]
            self._rows = packed_rows(snapshot, lengths, cached_tokens)
        return self._rows

    def _see(self, table: RequestTable, at_unix_s: float, before: EngineSnapshot | None) -> None:
        """Note what is new of each request. Runs for every engine step: keep calls per row few."""
        ledger = self.ledger
        columns = table.foretell_id, table.output_tokens, table.preemptions
        for index, (key, output, preemptions) in enumerate(zip(*columns, strict=True)):
            if not key:
                continue
            seen = ledger.observed(key)
            if seen is None or ledger.is_reserved(key):
                seen = self._meet(table, index, at_unix_s, before)
            if output > seen.output_tokens:
                if not seen.output_tokens:
                    seen.ttft_s = max(0.0, at_unix_s - seen.since_s)
                seen.output_tokens = output
            if preemptions > seen.preemptions:
                seen.preemptions = preemptions

    def _meet(
        self, table: RequestTable, index: int, at_unix_s: float, before: EngineSnapshot | None
    ) -> Observed:
        """Note a request that a snapshot shows for the first time, or first since its reservation.

        An idle engine schedules arrivals at once, so the request has just come. A busy one looks at
        its queue once a step: the request came after the snapshot before, and not before it
        arrived in the API server.
        """
        state = table[index]
        length = LengthEstimate(state.predicted_output_tokens or self._prior_tokens)
        joined_after_s = None
        if before is not None:
            joined_after_s = at_unix_s
            if before.running or before.waiting:
                joined_after_s = max(before.taken_unix_s, state.arrival_unix_s)
        return self.ledger.meet(
            RequestSpec(
                state.foretell_id,
                state.prompt_tokens,
                0,
                length,
                state.priority,
                slo=Slo(state.ttft_target_s or inf, state.tpot_target_s or inf),
            ),
            at_unix_s,
            state.arrival_unix_s,
            joined_after_s,
        )

    def _see_hits(self, running: RequestTable) -> None:
        """Note the prefix-cache hits of requests that run for the first time."""
        prefixes = self.ledger.prefixes
        pending = set(prefixes.pending) if prefixes is not None else None
        if not pending:
            return
        for index, key in enumerate(running.foretell_id):
            if key in pending:
                self.ledger.admitted(
                    key, running.cached_tokens[index], running.prompt_tokens[index]
                )
                pending.discard(key)  # of several sequences only the first one counts

    def _length_rows(self, table: RequestTable) -> list[Row]:
        """Length distributions: as estimated at dispatch, as the engine was told, or the prior."""
        rows = []
        for key, tokens in zip(table.foretell_id, table.predicted_output_tokens, strict=True):
            seen = self.ledger.observed(key)
            if seen is not None and seen.length_row:
                row = seen.length_row
            elif tokens <= 0:
                row = self._prior_row
            else:
                row = self.length_row(LengthEstimate(tokens, source="model"))
                if seen is not None:
                    seen.length_row = row
            rows.append(row)
        return rows
