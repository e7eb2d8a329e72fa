"""Predictor sidecars in virtual time.

They predict as those of the services do (`foretell.engine.predictor`), but their engines' pictures
are taken from the simulated engines themselves. They see them as they were at the last snapshot.
Their dispatch delay they know; real ones learn it.
"""

from foretell.engine.forecast import Forecaster
from foretell.engine.ledger import Ledger
from foretell.engine.predictor import EnginePredictor, predict
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.sequence import Sequence as EngineSequence
from foretell.engine.table import EngineTable
from foretell.kernel.step_time import StepTime
from foretell.length.distribution import Row
from foretell.model import EngineConfig, RequestSpec
from foretell.sim.instance import Instance

__all__ = ["SimForecaster", "SimPredictor", "predict"]


class SimForecaster(Forecaster):
    """The pictures of a cluster's engines, taken together when they are due."""

    def __init__(self, table: EngineTable, engines: int) -> None:
        super().__init__(engines)
        self._table = table
        self._due: list[int] = []

    def show(self, index: int, capacity: int) -> None:
        """A picture of engine `index`, which has at most `capacity` requests, is due."""
        self.make_room(capacity)
        self._due.append(index)

    def take(self, now_s: float) -> None:
        """Take all pictures that are due, before anything happens to their engines."""
        if self._due:
            self._table.publish(self.pictures, self._due, now_s)
            self._due.clear()


class SimPredictor(EnginePredictor):
    """Knows only what was published and what was reserved."""

    def __init__(
        self,
        index: int,
        instance_id: str,
        config: EngineConfig,
        step_time: StepTime,
        forecaster: SimForecaster,
        *,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        """`index` is its own in `forecaster`, which all of a cluster share; without `prefixes` it
        expects no hits."""
        ledger = Ledger(0.0, prefixes)
        super().__init__(forecaster, index, instance_id, config, ledger, step_time)
        self.ledger: Ledger = ledger
        self.published_s = 0.0
        self._pictures = forecaster
        self._arrived: dict[str, RequestSpec] = {}
        self._untold: dict[str, int] = {}

    def see(self, instance: Instance, now_s: float) -> None:
        """A newer snapshot, which `forecaster.take` is about to take.

        The requests that it shows need no reservation any more.
        """
        self.published_s = now_s
        if self.ledger.prefixes is not None:
            self._see_hits(self.ledger.prefixes, instance)
        self.published()
        self._pictures.show(self.index, instance.twin.capacity)
        if self._arrived:
            for request_id, spec in self._arrived.items():
                if request_id in instance:
                    self.ledger.meet(spec, now_s, now_s, None)
            self._arrived.clear()

    def reserve(self, spec: RequestSpec, length_row: Row, at_s: float, now_s: float) -> None:
        """`spec` is being dispatched here, and will be in the engine's queue `at_s`."""
        cached_tokens = self.ledger.reserve(spec, length_row, at_s, now_s)
        if self.ledger.prefixes is not None:
            self._untold[spec.request_id] = cached_tokens // self.engine_config.block_size_tokens

    def arrived(self, spec: RequestSpec) -> None:
        """The next snapshot will show `spec`, unless it has ended."""
        self._arrived[spec.request_id] = spec

    def complete(
        self, request_id: str, *, answered: bool = False, shown: EngineSequence | None = None
    ) -> None:
        """The request has ended, perhaps between two snapshots; `shown` is how they showed it."""
        if shown is not None:
            self.ledger.admitted(request_id, shown.cached_tokens, shown.prompt_tokens)
        self.ledger.complete(request_id, answered=answered)
        self._untold.pop(request_id, None)
        self._arrived.pop(request_id, None)

    @property
    def reservations(self) -> int:
        """Dispatched requests that no snapshot has shown yet."""
        return self.ledger.reserved

    def _see_hits(self, prefixes: PrefixIndex, instance: Instance) -> None:
        """Learn what was found cached; the engine's rows of those who wait are given what is
        believed of them, for the picture."""
        for request_id in list(self._untold):
            if (seq := instance.sequence(request_id)) is not None:
                seq.row["hits"] = self._untold.pop(request_id)
        for request_id in prefixes.pending:
            if (seq := instance.sequence(request_id)) is None:
                continue
            if not seq.computed_tokens:
                break  # nor are those behind it admitted
            self.ledger.admitted(request_id, seq.cached_tokens, seq.prompt_tokens)
