"""A predictor sidecar in virtual time: a snapshot of the past, and a ledger of the present."""

from foretell.engine import PendingRequest, forecast
from foretell.latency.linear import StepTimeModel
from foretell.length import remaining
from foretell.model import EngineSnapshot, Load, Prediction, RequestSpec, RequestState


class SimPredictor:
    """Knows only what was published and what was reserved, never the engine itself."""

    def __init__(
        self,
        first: EngineSnapshot,
        step_time: StepTimeModel,
        *,
        dispatch_delay_s: float,
        every_step_published: bool,
    ) -> None:
        self.snapshot = first
        self._step_time = step_time
        self._dispatch_delay_s = dispatch_delay_s
        self._every_step_published = every_step_published
        self._reserved: dict[str, PendingRequest] = {}

    @property
    def reserved(self) -> int:
        """Requests dispatched that no snapshot has shown."""
        return len(self._reserved)

    def hear(self, snapshot: EngineSnapshot) -> None:
        """A newer snapshot; the requests that it shows need no reservation any more."""
        self.snapshot = snapshot
        for state in (*snapshot.running, *snapshot.waiting):
            self._reserved.pop(state.foretell_id, None)

    def reserve(self, request: RequestSpec, now_s: float) -> None:
        """`request` is being dispatched here."""
        self._reserved[request.request_id] = PendingRequest(now_s + self._dispatch_delay_s, request)

    def complete(self, request_id: str) -> None:
        """The request has ended, perhaps between two snapshots."""
        self._reserved.pop(request_id, None)

    def load(self) -> Load:
        """The engine's occupancy as last heard, reservations included."""
        snapshot, config = self.snapshot, self.snapshot.config
        tokens = [state.prompt_tokens + state.output_tokens for state in snapshot.waiting]
        tokens += [pending.request.prompt_tokens for pending in self._reserved.values()]
        return Load(
            running=len(snapshot.running),
            waiting=len(snapshot.waiting),
            reserved=len(self._reserved),
            used_blocks=config.total_blocks - snapshot.free_blocks,
            total_blocks=config.total_blocks,
            waiting_prefill_blocks=sum(map(config.blocks_for, tokens)),
            max_num_seqs=config.max_num_seqs,
        )

    def predict(self, request: RequestSpec, now_s: float) -> Prediction:
        """What the engine would do with `request`, dispatched at `now_s`."""
        seen = forecast(
            self.snapshot,
            self._step_time,
            request,
            now_s,
            _expected_output,
            pending=tuple(self._reserved.values()),
            dispatch_delay_s=self._dispatch_delay_s,
            every_step_published=self._every_step_published,
        )
        return Prediction(
            instance_id=self.snapshot.instance_id,
            ttft_s=seen.ttft_s,
            e2e_s=seen.e2e_s,
            tpot_s=seen.tpot_s,
            preemptions=seen.preemptions,
            snapshot_age_s=now_s - self.snapshot.published_unix_s,
            load=self.load(),
        )


def _expected_output(state: RequestState) -> float:
    return state.output_tokens + remaining(state.predicted_output_tokens, state.output_tokens)
