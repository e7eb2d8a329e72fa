"""Why a request went where it went, and what became of it, as JSON can say it."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foretell.kernel.compiled import ImpossibleState
from foretell.model import Load, Prediction
from foretell.placement.explanation import Considered, explain
from foretell.policy import Policy
from foretell.services.scheduler.placing.stories import Chapter, Story

if TYPE_CHECKING:  # for who has no numpy, and calls
    from foretell.engine.hindsight import Scene

logger = logging.getLogger(__name__)

Foreseen = Mapping[str, Prediction]
"""Predictions by instance."""


def told(story: Story, policy: Policy) -> dict[str, Any]:
    """The story of a request. Times are seconds since it was placed, unless named otherwise."""
    return {
        "request_id": story.request_id,
        "model_name": story.model_name,
        "attempts": [told_attempt(chapter, policy) for chapter in story.chapters],
    }


def told_attempt(chapter: Chapter, policy: Policy) -> dict[str, Any]:
    """One attempt: why it went where it went, and what became of it."""
    decision, ended = chapter.decision, chapter.ended
    explanation, spec = explain(policy, decision), decision.spec
    try:
        hindsight, floor = _seen_again(chapter)
    except ImpossibleState:
        logger.exception("predicting from remembered pictures failed")
        hindsight, floor = {}, None
    return {
        "attempt": chapter.attempt,
        "instance_id": chapter.instance_id,
        "emulated": chapter.emulated,
        "policy": chapter.policy,
        "placed_unix_s": chapter.placed_unix_s,
        "placement_s": chapter.took_s,
        "because": _because(chapter, explanation.because),
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
        "happened": ended
        and {
            "status": ended.status,
            "finished": ended.finished,
            "broken": ended.broken,
            "continued": ended.continued,
            "ttft_s": ended.ttft_s or None,
            "e2e_s": ended.e2e_s or None,
            "prompt_tokens": ended.prompt_tokens or None,
            "output_tokens": ended.output_tokens or None,
        },
    }


def _because(chapter: Chapter, because: str) -> str:
    chosen = chapter.decision.chosen.instance_id
    if chapter.instance_id == chosen:
        return because
    return f"the gateway sent it to {chapter.instance_id}, having tried {chosen} in vain"


def _candidate(one: Considered, hindsight: Foreseen) -> dict[str, Any]:
    prediction, parts = one.prediction, one.parts
    again = hindsight.get(one.instance_id)
    return {
        "instance_id": one.instance_id,
        "chosen": one.chosen,
        "outstanding": one.outstanding,
        "load": one.load and _load(one.load),
        "foretold": prediction and _foretold(prediction),
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


def _foretold(prediction: Prediction) -> dict[str, Any]:
    return {
        **_latencies(prediction),
        "tpot_s": prediction.tpot_s,
        "preemptions": prediction.preemptions,
        "cached_tokens": prediction.cached_tokens,
        "snapshot_age_s": prediction.snapshot_age_s,
        "calibration_steps": prediction.calibration_steps,
    }


def _seen_again(chapter: Chapter) -> tuple[Foreseen, dict[str, Any] | None]:
    """What is foretold on each candidate with the length that the answer had, and what an idle
    engine like the chosen one would have needed; as far as the pictures are remembered."""
    scene, decision = chapter.scene, chapter.decision
    if scene is None:
        return {}, None
    from foretell.engine.hindsight import of_length, replay  # noqa: PLC0415 - needs numpy
    from foretell.length.distribution import knots  # noqa: PLC0415

    predicted = {c.instance_id: c.prediction for c in decision.candidates if c.prediction}
    cached = [predicted[i].cached_tokens if i in predicted else 0 for i in scene.instance_ids]
    spec, ended = decision.spec, chapter.ended
    tokens = ended.output_tokens // spec.sequences if ended and ended.finished else 0
    hindsight: Foreseen = {}
    if tokens:
        spec = of_length(spec, tokens)
        again = replay(scene, spec, knots, cached)
        hindsight = {p.instance_id: p for p in again if p.instance_id in predicted}
    if chapter.instance_id not in scene.instance_ids:
        return hindsight, None
    place = scene.instance_ids.index(chapter.instance_id)
    (idle,) = replay(_only(scene, place), spec, knots, cached[place : place + 1], idle=True)
    return hindsight, {**_latencies(idle), "output_tokens": spec.length.expected_tokens}


def _only(scene: "Scene", place: int) -> "Scene":
    return scene._replace(
        exposures=scene.exposures[place : place + 1],
        answer_delays_s=scene.answer_delays_s[place : place + 1],
    )
