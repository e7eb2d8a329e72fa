"""Predictors of single engines, and one call that predicts for many of them."""

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

from foretell.engine.answer import Quantiles, latency_quantiles, tpot_s
from foretell.engine.expected import still_expected
from foretell.engine.forecast import Forecaster
from foretell.engine.questions import EngineQuestion, Figures, Forecast, arrival, is_certain, key_of
from foretell.engine.underway import Underway
from foretell.kernel.step_time import StepTime
from foretell.latency.residuals import spread
from foretell.length.distribution import Row, certain
from foretell.model import EngineConfig, LengthEstimate, Load, Prediction, RequestSpec

Stage = Literal["running", "waiting", "sent"]
"""`sent`: on its way to the engine."""
_NOBODY = RequestSpec("", 1, 0, LengthEstimate(1.0, source="hint"))


def samples_behind(waiting: int) -> int:
    """The number of rollouts, each with its own sample of lengths, behind `waiting` requests.

    The more requests wait, the more a rollout costs, and the fewer are needed: the start depends on
    more lengths, whose deviations average out. A power of two, as `draw_levels` wants it.
    """
    if waiting < 8:
        return 8
    return 4 if waiting < 32 else 2


class EnginePredictor:
    """One engine as last published, and the requests that are on their way to it."""

    def __init__(
        self,
        forecaster: Forecaster,
        index: int,
        instance_id: str,
        config: EngineConfig,
        underway: Underway,
        model: StepTime,
    ) -> None:
        """`index` is the place of the engine's snapshot in `forecaster`; `model` is its step-time
        model."""
        self.forecaster = forecaster
        self.index = index
        self.instance_id = instance_id
        self.engine_config = config
        self.underway = underway
        self._step_error = 0.0, 0.0
        self.calibration_steps = 0
        self.answer_delay_s = 0.0
        """Seconds from a token in the engine to the caller; predictions include it."""
        self.cached_tokens: int | None = None
        """Tokens of every prompt that are found cached; None: ask `underway`."""
        self._model = model
        self._version = 0  # of the snapshot and the step-time model
        self._figures: Figures | None = None
        self._load: Load | None = None
        self._loaded_at = -1
        forecaster.describe(index, config)
        forecaster.believe(index, model)

    @property
    def model(self) -> StepTime:
        """The step-time model. It is never changed in place, only replaced."""
        return self._model

    def configure(self, config: EngineConfig) -> None:
        """Take in the configuration of a new run of the engine."""
        self.engine_config = config
        self.forecaster.describe(self.index, config)
        self.published()

    def believe(
        self, model: StepTime, step_error: tuple[float, float], calibration_steps: int
    ) -> None:
        """Set the step-time model, the number of steps it has learnt from, and its error, which is
        `latency.residuals.StepResiduals.variances`."""
        self._step_error, self.calibration_steps = step_error, calibration_steps
        if model is not self._model:  # models are never changed in place
            self._model = model
            self._version += 1
            self.forecaster.believe(self.index, model)

    def published(self) -> None:
        """Note that the engine's snapshot is replaced, or is about to be."""
        self._version += 1
        self._figures = self._load = None

    @property
    def figures(self) -> Figures:
        """The engine's load as its snapshot shows it."""
        if self._figures is None:
            self._figures = self.forecaster.figures(self.index)
        return self._figures

    def load(self) -> Load:
        """The engine's load as last published, reservations included."""
        underway = self.underway
        if self._load is None or self._loaded_at != underway.changes:
            self._loaded_at, config, figures = underway.changes, self.engine_config, self.figures
            offline = self.forecaster.offline_blocks(self.index) if config.co_schedules else 0
            reserved = underway.reserved, underway.reserved_blocks(config)
            self._load = load_of(config, figures, *reserved, offline)
        return self._load

    def question(
        self,
        request: RequestSpec,
        certain: bool,
        *,
        announced_only: bool,
        single: bool = False,
        now_s: float = -inf,
    ) -> EngineQuestion:
        """Return the forecast question for `request` on this engine.

        `certain`: its length is certain. Expected arrivals before `now_s` are left out, as they
        have come by now and are announced. The other arguments are those of `predict`.
        """
        figures, underway = self.figures, self.underway
        samples, cached = 1, self.cached_tokens
        if not (single or (certain and figures.certain and underway.certain)):
            samples = samples_behind(figures.requests - figures.running + underway.reserved)
        return EngineQuestion(
            self.index,
            samples,
            underway.cached_tokens(request) if cached is None else cached,
            underway.rows,
            () if announced_only else still_expected(underway.expected, now_s),
            self._version + underway.changes,
            underway.dispatch_delay_s,
        )

    def prediction(
        self, seen: Forecast, cached_tokens: int, age_s: float, with_quantiles: bool
    ) -> Prediction:
        """Make a prediction of a forecast: add the answer's delay and the errors of step times."""
        delay_s = self.answer_delay_s
        ttft_s, e2e_s = seen.ttft_s + delay_s, seen.e2e_s + delay_s
        ttft_quantiles: Quantiles = ()
        e2e_quantiles: Quantiles = ()
        if with_quantiles:
            error = spread(self._step_error, seen.steps)
            ttft_quantiles = latency_quantiles(seen.ttfts_s, error, delay_s)
            e2e_quantiles = latency_quantiles(seen.e2es_s, error, delay_s)
        added_ttft_s, added_e2e_s = seen.added or (None, None)
        return Prediction(  # by position: this runs for each candidate of each placement
            self.instance_id,
            ttft_s,
            e2e_s,
            tpot_s(ttft_s, e2e_s, seen.output_tokens),
            seen.preempted_s,
            age_s,
            self.load(),
            self.calibration_steps,
            ttft_quantiles,
            e2e_quantiles,
            added_ttft_s,
            added_e2e_s,
            cached_tokens,
            self.engine_config.approximations,
        )

    def wait_s(
        self,
        request: RequestSpec,
        length_row: Row,
        now_s: float,
    ) -> float | None:
        """Seconds until the first token of a request that was sent here; None if it is not known to
        wait any more, or has several sequences."""
        if request.sequences > 1:
            return None
        question = self.question(request, is_certain(length_row), announced_only=True)
        found = self.forecaster.wait_s(
            question,
            arrival(request, length_row, now_s),
            now_s,
        )
        return None if found is None else found + self.answer_delay_s

    def has_begun(self, request_id: str) -> bool:
        """Whether the snapshot shows that the engine has begun to compute that request."""
        return self.forecaster.has_begun(self.index, key_of(request_id))


def load_of(
    config: EngineConfig, figures: Figures, reserved: int, reserved_blocks: int, offline_blocks: int
) -> Load:
    """The load of an engine with these figures.

    `reserved` sequences are on their way to it; their prompts need `reserved_blocks` KV blocks.
    Running offline requests hold `offline_blocks` if the engine co-schedules.
    """
    used_blocks = max(0, config.total_blocks - figures.free_blocks)
    return Load(
        running=figures.running,
        waiting=figures.requests - figures.running,
        reserved=reserved,
        used_blocks=used_blocks,
        total_blocks=config.total_blocks,
        waiting_prefill_blocks=figures.waiting_blocks + reserved_blocks,
        max_num_seqs=config.max_num_seqs,
        by_priority=config.policy == "priority",
        offline_blocks=min(used_blocks, offline_blocks),
    )


def predict(
    forecaster: Forecaster,
    asked: Sequence[EnginePredictor],
    request: RequestSpec,
    length_row: Row,
    *,
    at_s: float,
    now_s: float,
    ages_s: Sequence[float],
    announced_only: bool = False,
    externality: bool = False,
    with_quantiles: bool = True,
    single: bool = False,
) -> list[Prediction]:
    """Predict for each engine in `asked` what becomes of `request` if it is dispatched at `at_s`.

    One call for all engines: a call into compiled code costs as much as a short forecast.
    Predictions assume later arrivals at the recent rate and size, except with `announced_only`. Use
    that to compare engines: how many requests came to one says little about where requests that
    are still to be placed will go. `externality`: also compute what the request adds to the
    latencies of the others there or on their way. `ages_s`: seconds since each engine was last
    heard from. `with_quantiles`: False leaves out quantiles, which saves time. `single`: run one
    rollout for each engine, with the medians of uncertain lengths, which is cheaper.
    """
    new_request, certain = arrival(request, length_row, at_s), is_certain(length_row)
    questions = [
        predictor.question(
            request, certain, announced_only=announced_only, single=single, now_s=at_s
        )
        for predictor in asked
    ]
    found = forecaster.forecast(questions, new_request, now_s, externality=externality)
    return [
        predictor.prediction(one, question.cached_tokens, age_s, with_quantiles)
        for predictor, question, one, age_s in zip(asked, questions, found, ages_s, strict=True)
    ]


class Lane(NamedTuple):
    """One sequence in an engine, seconds from now."""

    stage: Stage
    output_tokens: int
    """So far."""
    first_s: float
    """Until its first token is expected; 0 where it has one."""
    last_s: float
    """Until its last token is expected; infinite where it can never run."""


def lanes(predictor: EnginePredictor, now_s: float) -> list[Lane]:
    """The sequences of an engine: running, then waiting, then on their way to it."""
    question = predictor.question(_NOBODY, False, announced_only=True)
    first_s, last_s = predictor.forecaster.futures_s(
        question, arrival(_NOBODY, certain(1.0), now_s), now_s
    )
    figures = predictor.figures
    rows = predictor.forecaster.snapshots.requests[predictor.index, : figures.requests]
    outputs = [int(tokens) for tokens in rows["output"]]
    found = []
    for slot, (first, last) in enumerate(zip(first_s.tolist(), last_s.tolist(), strict=True)):
        stage: Stage = "sent"
        if slot < figures.requests:
            stage = "running" if slot < figures.running else "waiting"
        tokens = outputs[slot] if slot < len(outputs) else 0
        until_first_s = 0.0 if tokens else max(0.0, first - now_s)
        found.append(Lane(stage, tokens, until_first_s, max(0.0, last - now_s)))
    return found
