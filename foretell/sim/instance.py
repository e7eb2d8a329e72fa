"""One engine in virtual time: a twin whose steps last as long as a step-time model says."""

from foretell.cosched import Targets
from foretell.engine import Content, Sequence
from foretell.engine.table import EngineTable
from foretell.engine.twin import Twin
from foretell.kernel.compiled import ImpossibleState
from foretell.kernel.step_time import StepTime, scaled
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape
from foretell.model.prediction import NO_SLO, Slo
from foretell.sim.config import SimInstanceConfig


class InvariantError(AssertionError):
    """The simulated cluster did something that no cluster may do."""


def check(condition: bool, what: str) -> None:
    """Raise `InvariantError` unless `condition`; unlike `assert`, also under `python -O`."""
    if not condition:
        raise InvariantError(what)


class SimInstance:
    """A simulated engine. The caller owns the clock; the kernel checks every step."""

    def __init__(
        self,
        instance_id: str,
        config: SimInstanceConfig,
        table: EngineTable,
        index: int,
        *,
        prefix_cache: bool,
        counted_s: tuple[float, float],
    ) -> None:
        """`index` is its place in `table`; `counted_s`: start and end of the time over which its
        free blocks are summed."""
        self.instance_id = instance_id
        self.config = config.engine
        self._table = table
        self._index = index
        self.twin = Twin(config.engine, prefix_cache=prefix_cache)
        self.twin.count_free_blocks(*counted_s)
        self._model: StepTime = config.step_time.packed()
        self._usual = self._model
        self._here: dict[str, Sequence] = {}
        self._settle()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._here

    def sequence(self, request_id: str) -> Sequence | None:
        """The sequence of a request; None if it is not here."""
        return self._here.get(request_id)

    @property
    def version(self) -> int:
        """How often its state has changed."""
        return self._table.changes(self._index)

    @property
    def in_step(self) -> bool:
        """Whether a step is in flight; new requests wait for its end."""
        return self._table.in_step(self._index)

    def step_in_flight(self) -> tuple[BatchShape, float, float]:
        """The oldest step in flight: its shape, its duration in seconds, and when it ends."""
        shape = self.twin.oldest_shape
        return shape, StepTimeModel(self._model).step_s(shape), self.twin.ends_s

    def slow_down(self, factor: float) -> None:
        """Steps scheduled from now on take `factor` times their usual time."""
        self._model = scaled(self._usual, factor)
        self._settle()

    def deliver(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        content: Content | None,
        length_row: tuple[float, ...],
        now_s: float,
        priority: int = 0,
        slo: Slo = NO_SLO,
    ) -> None:
        """Add a request to the engine's queue; `length_row` is its length as predictors believe.

        `slo` matters to engines that co-schedule.
        """
        check(request_id not in self._here, f"{request_id} delivered twice")
        seq = Sequence(
            request_id,
            prompt_tokens,
            output_tokens,
            0,
            priority=priority,
            arrival_s=now_s,
            targets_s=Targets(slo.ttft_s, slo.tpot_s).or_zero_s,
            content=content,
        )
        self._here[request_id] = seq
        self.twin.add(seq, length_row)
        if self.twin.live is not self._settled:
            self._settle()
        self._table.change(self._index, now_s)

    def wake(self, now_s: float) -> None:
        """Start a step of an idle engine that has got requests."""
        try:
            self._table.step(self._index, now_s)
        except ImpossibleState as error:
            raise InvariantError(f"{self.instance_id}: {error}") from error

    def take_back(self, request_id: str, now_s: float) -> bool:
        """Drop a request of which nothing was computed; False if something was, or it has left."""
        seq = self._here.get(request_id)
        if seq is None or int(seq.row["computed"]) or int(seq.row["output"]):
            return False
        del self._here[request_id]
        self.twin.abort(request_id)
        self._table.change(self._index, now_s)
        return True

    def forget(self, finished: list[Sequence]) -> None:
        """Forget requests that have ended."""
        for seq in finished:
            check(
                self._here.pop(seq.request_id, None) is not None,
                f"{seq.request_id} finished but was not here",
            )

    def die(self) -> list[tuple[str, bool]]:
        """Remove the engine; returns its requests by arrival, and whether each had a token."""
        self._table.remove(self._index)
        return [(key, bool(seq.row["output"] > 0)) for key, seq in self._here.items()]

    def check_empty(self) -> None:
        """Raise `InvariantError` if a request, a step or a block is left behind."""
        twin = self.twin
        check(
            not (twin.running or twin.waiting or self.in_step or self._here),
            f"{self.instance_id}: {len(twin.running)} running and {len(twin.waiting)} waiting "
            f"requests left behind, of {sorted(self._here)}",
        )
        twin.check()
        check(
            twin.free_blocks == self.config.total_blocks,
            f"{self.instance_id}: {self.config.total_blocks - twin.free_blocks} blocks leaked",
        )

    def _settle(self) -> None:
        """Put the twin's arrays and the step times into the table."""
        self._settled = self.twin.live
        self._table.put(self._index, self.twin, self._model)
