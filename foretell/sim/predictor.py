"""Predictor sidecars in virtual time.

They do as `foretell.engine.EngineBook` does, with the same kernel and the same numbers, but look at
their engines' arrays (`foretell.engine.direct`) instead of at messages. They see them as they were
at the last snapshot, never the engine itself. Their dispatch delay they know; real ones learn it.
"""

from collections.abc import Sequence
from zlib import crc32

from foretell.engine.answer import as_prediction, no_spread
from foretell.engine.book import LOOK_AHEAD_S, MOST_EXPECTED, samples_behind
from foretell.engine.direct import NOBODY, ComingRow, DirectForecaster, Expected, Question, Seen
from foretell.engine.expected import RecentArrivals
from foretell.engine.externality import Added
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.sequence import Sequence as EngineSequence
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import Row
from foretell.model import EngineConfig, Load, Prediction, RequestSpec
from foretell.sim.instance import Instance


class SimPredictor:
    """Knows only what was published and what was reserved."""

    def __init__(
        self,
        index: int,
        instance_id: str,
        config: EngineConfig,
        step_time: StepTimeModel,
        forecaster: DirectForecaster,
        *,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        """`index` is its own in `forecaster`, which all of a cluster share; without `prefixes` it
        expects no hits."""
        self.published_s = 0.0
        self.engine_config = config
        self.instance_id = instance_id
        self.model = step_time.packed()
        self._index = index
        self._forecaster = forecaster
        self._seen: Seen | None = None
        self._load: Load | None = None
        self._arrivals = RecentArrivals()
        self._reserved: dict[str, ComingRow] = {}
        self._reserved_blocks = 0
        self._arrived: dict[str, RequestSpec] = {}
        self._shown: set[str] = set()
        self._prefixes = prefixes
        self._untold: dict[str, int] = {}

    def see(self, instance: Instance, now_s: float) -> None:
        """A newer snapshot, which `forecaster.take` is about to take.

        The requests that it shows need no reservation any more.
        """
        self.published_s = now_s
        if self._prefixes is not None:
            self._see_hits(self._prefixes, instance)
        self._seen = self._load = None
        self._forecaster.show(self._index, instance.twin)
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
        hits = 0
        if self._prefixes is not None:
            hits = self._prefixes.reserve(spec) // self.engine_config.block_size_tokens
            self._untold[spec.request_id] = hits
        if spec.request_id in self._shown:
            return
        self._note(spec, now_s, hits)
        self._reserved[spec.request_id] = _coming(spec, length_row, at_s, hits)
        self._load = None
        self._reserved_blocks += self.engine_config.blocks_for(spec.prompt_tokens)

    def arrived(self, spec: RequestSpec) -> None:
        """The next snapshot will show `spec`, unless it has ended."""
        self._arrived[spec.request_id] = spec

    def complete(
        self, request_id: str, *, answered: bool = False, shown: EngineSequence | None = None
    ) -> None:
        """The request has ended, perhaps between two snapshots; `shown` is how they showed it."""
        if self._prefixes is not None:
            if shown is not None:
                self._prefixes.admitted(request_id, shown.cached_tokens, shown.prompt_tokens)
            self._prefixes.ended(request_id, answered=answered)
            self._untold.pop(request_id, None)
        self._forget(request_id)
        self._shown.discard(request_id)
        self._arrived.pop(request_id, None)

    @property
    def reservations(self) -> int:
        """Dispatched requests that no snapshot has shown yet."""
        return len(self._reserved)

    @property
    def seen(self) -> Seen:
        """The latest snapshot's figures."""
        if self._seen is None:
            self._seen = self._forecaster.seen(self._index)
        return self._seen

    def load(self) -> Load:
        """The engine's occupancy as last heard, reservations included."""
        if self._load is None:
            self._load = self._occupancy()
        return self._load

    def _occupancy(self) -> Load:
        seen, config = self.seen, self.engine_config
        return Load(
            running=seen.running,
            waiting=seen.requests - seen.running,
            reserved=len(self._reserved),
            used_blocks=config.total_blocks - seen.free_blocks,
            total_blocks=config.total_blocks,
            waiting_prefill_blocks=seen.waiting_blocks + self._reserved_blocks,
            max_num_seqs=config.max_num_seqs,
            by_priority=config.policy == "priority",
        )

    def question(
        self, spec: RequestSpec, certain: bool, at_s: float, *, announced_only: bool
    ) -> Question:
        """All that it knows, for `spec` in its engine's queue `at_s`.

        `certain`: its length is. `announced_only` as `EngineBook.predict` has it.
        """
        seen, reserved = self.seen, list(self._reserved.values())
        samples = 1
        if not (certain and seen.certain and all(map(_certain_row, reserved))):
            samples = samples_behind(seen.requests - seen.running + len(reserved))
        expected = NOBODY if announced_only else self._expected(at_s)
        tokens = self._prefixes.find(spec) if self._prefixes is not None else 0
        hits = tokens // self.engine_config.block_size_tokens
        return self._index, seen.requests, samples, hits, reserved, expected

    def _see_hits(self, prefixes: PrefixIndex, instance: Instance) -> None:
        """As `EngineBook._see_hits`; who waits is told what hits are believed, for the picture."""
        for request_id in list(self._untold):
            if (seq := instance.sequence(request_id)) is not None:
                seq.row["hits"] = self._untold.pop(request_id)
        for request_id in prefixes.pending:
            if (seq := instance.sequence(request_id)) is None:
                continue
            if not seq.computed_tokens:
                break  # nor are those behind it admitted
            prefixes.admitted(request_id, seq.cached_tokens, seq.prompt_tokens)

    def _expected(self, at_s: float) -> Expected:
        """As `RecentArrivals.expected`."""
        sizes = self._arrivals.sizes(at_s, at_s + LOOK_AHEAD_S, MOST_EXPECTED)
        if sizes is None:
            return NOBODY
        count, prompt, output, cached, rate = sizes
        hits = cached // self.engine_config.block_size_tokens
        return count, prompt, output, hits, at_s + 0.5 / rate, 1.0 / rate

    def _note(self, spec: RequestSpec, now_s: float, hits: int = 0) -> None:
        cached = hits * self.engine_config.block_size_tokens
        self._arrivals.note(spec.prompt_tokens, spec.length.expected_tokens, now_s, cached)

    def _forget(self, request_id: str) -> bool:
        """Drop its reservation; whether there was one."""
        row = self._reserved.pop(request_id, None)
        if row is None:
            return False
        self._load = None
        self._reserved_blocks -= self.engine_config.blocks_for(row[2])
        return True


def predict(
    forecaster: DirectForecaster,
    asked: Sequence[SimPredictor],
    spec: RequestSpec,
    row: Row,
    *,
    at_s: float,
    now_s: float,
    ages_s: Sequence[float],
    every_step_published: bool,
    announced_only: bool = False,
    externality: bool = False,
    with_quantiles: bool = True,
) -> list[Prediction]:
    """What each of those asked says of `spec`, if that were in its engine's queue `at_s`.

    `ages_s`: since their engines were last heard from. `announced_only` and `externality` as
    `EngineBook.predict` has them, `with_quantiles` as `as_prediction`. All at
    once: a call into compiled code costs as much as a short forecast.
    """
    newcomer, certain = _coming(spec, row, at_s), is_certain(row)
    predictions: list[Prediction | None] = [None] * len(asked)
    for places in _by_model(asked):
        model = asked[places[0]].model
        questions = [
            asked[place].question(spec, certain, at_s, announced_only=announced_only)
            for place in places
        ]
        seen = forecaster.forecast(
            model,
            questions,
            newcomer,
            now_s,
            certain=certain,
            every_step_published=every_step_published,
        )
        added: Sequence[Added | None] = [None] * len(places)
        if externality:
            added = forecaster.added(
                model, questions, newcomer, now_s, every_step_published=every_step_published
            )
        for place, question, one, costs in zip(places, questions, seen, added, strict=True):
            predictor = asked[place]
            predictions[place] = as_prediction(
                predictor.instance_id,
                one,
                predictor.load(),
                age_s=ages_s[place],
                spread=no_spread,
                added=costs,
                cached_tokens=question[3] * predictor.engine_config.block_size_tokens,
                with_quantiles=with_quantiles,
            )
    return [prediction for prediction in predictions if prediction is not None]


def is_certain(row: Row) -> bool:
    """Whether a length is taken at its word."""
    return row[0] == row[-2] and not row[-1]


def _by_model(asked: Sequence[SimPredictor]) -> list[list[int]]:
    """The places in `asked` of those that share a step-time model."""
    groups: dict[int, list[int]] = {}
    for place, predictor in enumerate(asked):
        groups.setdefault(id(predictor.model), []).append(place)
    return list(groups.values())


def _coming(spec: RequestSpec, length_row: Row, at_s: float, hits: int = 0) -> ComingRow:
    key = crc32(spec.request_id.encode())
    return at_s, 0.0, spec.prompt_tokens, spec.max_tokens, spec.priority, hits, key, length_row


def _certain_row(coming: ComingRow) -> bool:
    return is_certain(coming[-1])
