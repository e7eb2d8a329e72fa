"""Why a request was placed where it was, and how it ended, as values for JSON."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foretell.engine.doubt import DOUBTED
from foretell.kernel.compiled import ImpossibleState
from foretell.model import Load, Prediction
from foretell.placement.explanation import Considered, explain
from foretell.policy import Policy
from foretell.services.scheduler.placing.attempt import Attempt, RequestTrace

if TYPE_CHECKING:  # its module needs numpy
    from foretell.engine.hindsight import PredictionInputs

logger = logging.getLogger(__name__)

_FACTS = ("status", "finished", "broken", "continued")
_NUMBERS = ("ttft_s", "e2e_s", "prompt_tokens", "output_tokens")
_PREDICTED = (
    *("ttft_s", "e2e_s", "tpot_s", "preempted_s", "cached_tokens"),
    *("snapshot_age_s", "calibration_steps", "approximations"),
)

Predictions = Mapping[str, Prediction]


def explained(trace: RequestTrace, policy: Policy) -> dict[str, Any]:
    """All attempts of a request. Times are seconds since it was placed, unless named otherwise."""
    return {
        "request_id": trace.request_id,
        "model_name": trace.model_name,
        "attempts": [explained_attempt(attempt, policy) for attempt in trace.attempts],
    }


def explained_attempt(attempt: Attempt, policy: Policy) -> dict[str, Any]:
    """One attempt: why it was placed where it was, and how it ended."""
    decision = attempt.decision
    explanation, spec = explain(policy, decision), decision.spec
    try:
        hindsight, floor = _predicted_again(attempt)
    except ImpossibleState:
        logger.exception("predicting from remembered snapshots failed")
        hindsight, floor = {}, None
    return {
        "attempt": attempt.number,
        "instance_id": attempt.instance_id,
        "emulated": attempt.instance.emulated,
        "policy": attempt.policy,
        "placed_unix_s": attempt.placed_unix_s,
        "placement_s": attempt.took_s,
        "because": _because(attempt, explanation.because),
        "measure": explanation.measure,
        "draw": explanation.draw,
        "expected": {
            "prompt_tokens": spec.prompt_tokens,
            "output_tokens": spec.length.expected_tokens,
            "length_source": spec.length.source,
            "ttft_target_s": spec.slo.ttft_s,
            "tpot_target_s": spec.slo.tpot_s,
        },
        "candidates": [_candidate(one, hindsight) for one in explanation.candidates],
        "floor": floor,
        "happened": _happened(attempt) if attempt.settled else None,
    }


def _happened(attempt: Attempt) -> dict[str, Any]:
    facts = {name: getattr(attempt, name) for name in _FACTS}
    return facts | {name: getattr(attempt, name) or None for name in _NUMBERS}


def _because(attempt: Attempt, because: str) -> str:
    chosen = attempt.decision.chosen.instance_id
    if attempt.instance_id == chosen:
        return f"{because}; {chosen}: {DOUBTED}" if attempt.withheld is not None else because
    return f"the gateway sent it to {attempt.instance_id}, having tried {chosen} in vain"


def _candidate(one: Considered, hindsight: Predictions) -> dict[str, Any]:
    prediction, parts = one.prediction, one.parts
    again = hindsight.get(one.instance_id)
    return {
        "instance_id": one.instance_id,
        "chosen": one.chosen,
        "outstanding": one.outstanding,
        "load": one.load and _load(one.load),
        "predicted": prediction and {name: getattr(prediction, name) for name in _PREDICTED},
        "compared": one.compared,
        "score": one.score,
        "tie_break": one.tie_break,
        "score_known": one.score_known,
        "parts": parts and parts._asdict(),
        "worth": one.worth,
        "hindsight": again and _latencies(again),
    }


def _load(load: Load) -> dict[str, Any]:
    return {
        "running": load.running,
        "waiting": load.waiting,
        "reserved": load.reserved,
        "max_num_seqs": load.max_num_seqs,
        "kv_used_ratio": load.used_blocks / max(1, load.total_blocks),
    }


def _latencies(prediction: Prediction) -> dict[str, Any]:
    return {"ttft_s": prediction.ttft_s, "e2e_s": prediction.e2e_s}


def _predicted_again(attempt: Attempt) -> tuple[Predictions, dict[str, Any] | None]:
    """The predictions for each candidate with the actual length of the answer, and the latencies on
    an idle engine like the chosen one; empty and None if the snapshots are no longer kept."""
    inputs, decision = attempt.inputs, attempt.decision
    if inputs is None:
        return {}, None
    from foretell.engine.hindsight import of_length, replay  # noqa: PLC0415 - needs numpy
    from foretell.length.distribution import knots  # noqa: PLC0415

    predicted = {c.instance_id: c.prediction for c in decision.candidates if c.prediction}
    cached = [predicted[i].cached_tokens if i in predicted else 0 for i in inputs.instance_ids]
    spec = decision.spec
    tokens = attempt.output_tokens // spec.sequences if attempt.finished else 0
    hindsight: Predictions = {}
    if tokens:
        spec = of_length(spec, tokens)
        again = replay(inputs, spec, knots, cached)
        hindsight = {p.instance_id: p for p in again if p.instance_id in predicted}
    if attempt.instance_id not in inputs.instance_ids:
        return hindsight, None
    place = inputs.instance_ids.index(attempt.instance_id)
    (idle,) = replay(_only(inputs, place), spec, knots, cached[place : place + 1], idle=True)
    return hindsight, {**_latencies(idle), "output_tokens": spec.length.expected_tokens}


def _only(inputs: "PredictionInputs", place: int) -> "PredictionInputs":
    return inputs._replace(
        exposures=inputs.exposures[place : place + 1],
        answer_delays_s=inputs.answer_delays_s[place : place + 1],
    )
