"""A predictor sidecar in virtual time.

It does as `foretell.engine.EngineBook` does, with the same kernel and the same numbers, but looks
at its engine's arrays (`foretell.engine.direct`) instead of at messages. It sees them as they were
at the last snapshot, never the engine itself. Its dispatch delay it knows; a real one learns it.
"""

from zlib import crc32

from foretell.engine.book import (
    LOOK_AHEAD_S,
    MOST_EXPECTED,
    as_prediction,
    no_spread,
    samples_behind,
)
from foretell.engine.direct import ComingRow, DirectForecaster, Scratch
from foretell.engine.expected import EXPECTED_ID, RecentArrivals
from foretell.kernel.lengths import WIDTH
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import Row
from foretell.model import EngineConfig, Load, Prediction, RequestSpec
from foretell.sim.instance import Instance

_EXPECTED_KEY = crc32(EXPECTED_ID.encode())


class SimPredictor:
    """Knows only what was published and what was reserved."""

    def __init__(
        self,
        instance_id: str,
        config: EngineConfig,
        step_time: StepTimeModel,
        scratch: Scratch,
        *,
        every_step_published: bool,
        expect_arrivals: bool,
    ) -> None:
        self.published_s = 0.0
        self.engine_config = config
        self._instance_id = instance_id
        self._model = step_time.packed()
        self._every_step_published = every_step_published
        self._expect_arrivals = expect_arrivals
        self._forecaster = DirectForecaster(config, scratch)
        self._arrivals = RecentArrivals()
        self._reserved: dict[str, ComingRow] = {}
        self._reserved_blocks = 0
        self._arrived: dict[str, RequestSpec] = {}
        self._shown: set[str] = set()

    def see(self, instance: Instance, now_s: float) -> None:
        """A newer snapshot; the requests that it shows need no reservation any more."""
        self.published_s = now_s
        self._forecaster.take(instance.twin, self._model, now_s)
        if not self._arrived:
            return
        for request_id, spec in self._arrived.items():
            if request_id in instance:
                if not self._forget(request_id):
                    self._note(spec, now_s)
                self._shown.add(request_id)
        self._arrived.clear()

    def reserve(self, spec: RequestSpec, length_row: Row, at_s: float, now_s: float) -> None:
        """`spec` is being dispatched here, and will be in the engine's queue `at_s`."""
        if spec.request_id in self._shown:
            return
        self._note(spec, now_s)
        self._reserved[spec.request_id] = _coming(spec, length_row, at_s)
        self._reserved_blocks += self.engine_config.blocks_for(spec.prompt_tokens)

    def arrived(self, spec: RequestSpec) -> None:
        """The next snapshot will show `spec`, unless it has ended."""
        self._arrived[spec.request_id] = spec

    def complete(self, request_id: str) -> None:
        """The request has ended, perhaps between two snapshots."""
        self._forget(request_id)
        self._shown.discard(request_id)
        self._arrived.pop(request_id, None)

    @property
    def reservations(self) -> int:
        """Dispatched requests that no snapshot has shown yet."""
        return len(self._reserved)

    def load(self) -> Load:
        """The engine's occupancy as last heard, reservations included."""
        forecaster, config = self._forecaster, self.engine_config
        return Load(
            running=forecaster.running,
            waiting=forecaster.requests - forecaster.running,
            reserved=len(self._reserved),
            used_blocks=config.total_blocks - forecaster.free_blocks,
            total_blocks=config.total_blocks,
            waiting_prefill_blocks=forecaster.waiting_blocks + self._reserved_blocks,
            max_num_seqs=config.max_num_seqs,
        )

    def predict(
        self, spec: RequestSpec, length_row: Row, at_s: float, now_s: float, age_s: float
    ) -> Prediction:
        """What the engine would do with `spec`, if that were in its queue `at_s`.

        `age_s`: since the engine was last heard from.
        """
        load = self.load()
        coming = list(self._reserved.values())
        if self._expect_arrivals:
            sizes = self._arrivals.sizes(at_s, at_s + LOOK_AHEAD_S, MOST_EXPECTED)
            if sizes is not None:
                coming.append(_typical(sizes, at_s))
        coming.append(_coming(spec, length_row, at_s))
        certain = self._forecaster.certain and all(map(_certain_row, coming))
        seen = self._forecaster.forecast(
            self._model,
            coming,
            now_s,
            samples=1 if certain else samples_behind(load.waiting + load.reserved),
            certain=_is_certain(length_row),
            every_step_published=self._every_step_published,
        )
        return as_prediction(self._instance_id, seen, load, age_s=age_s, spread=no_spread)

    def _note(self, spec: RequestSpec, now_s: float) -> None:
        self._arrivals.note(spec.prompt_tokens, spec.length.expected_tokens, now_s)

    def _forget(self, request_id: str) -> bool:
        """Drop its reservation; whether there was one."""
        row = self._reserved.pop(request_id, None)
        if row is None:
            return False
        self._reserved_blocks -= self.engine_config.blocks_for(row[3])
        return True


def _coming(spec: RequestSpec, length_row: Row, at_s: float) -> ComingRow:
    key = crc32(spec.request_id.encode())
    return at_s, 0.0, 1, spec.prompt_tokens, spec.max_tokens, spec.priority, 0, key, length_row


def _typical(sizes: tuple[int, int, int, float], at_s: float) -> ComingRow:
    """As `RecentArrivals.expected`."""
    count, prompt, output, rate = sizes
    row = (float(output),) * (WIDTH - 1) + (0.0,)
    return at_s + 0.5 / rate, 1.0 / rate, count, prompt, output, 0, 0, _EXPECTED_KEY, row


def _certain_row(coming: ComingRow) -> bool:
    return _is_certain(coming[-1])


def _is_certain(row: Row) -> bool:
    return row[0] == row[-2] and not row[-1]
