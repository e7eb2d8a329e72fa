"""What the console's page shows of one replica."""

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.placing.stories import Chapter, Stories, Story
from foretell.services.scheduler.record.recent import WINDOW_S

MOST_REQUESTS = 50
"""The latest requests that are listed."""
_LONGEST_S = 1e6  # JSON has no infinity


def console_state(status: Mapping[str, Any], placer: Placer) -> dict[str, Any]:
    """The report at `/status` with the lanes of each engine, the latest requests, and how many of
    the last minute's answers kept their targets."""
    given, met = _targets(placer.stories, time.time() - WINDOW_S)
    return {
        **status,
        "instances": _with_lanes(status["instances"], placer.predictors),
        "requests": [_row(story) for story in islice(placer.stories.latest(), MOST_REQUESTS)],
        "targets": {"given": given, "met": met},
    }


def _with_lanes(instances: list[dict[str, Any]], predictors: Predictors) -> list[dict[str, Any]]:
    """Each instance with its requests in their order, each as stage, tokens so far, and seconds
    until its first and its last token."""
    found = predictors.lanes()
    return [
        {**instance, "lanes": [_lane(*lane) for lane in found.get(instance["instance_id"], [])]}
        for instance in instances
    ]


def _lane(stage: str, output_tokens: int, first_s: float, last_s: float) -> list[Any]:
    return [stage, output_tokens, _bounded(first_s), _bounded(last_s)]


def _row(story: Story) -> dict[str, Any]:
    """A request and its latest attempt; latencies are None where not known."""
    last = story.chapters[-1]
    prediction, ended = last.decision.chosen.prediction, last.ended
    return {
        "request_id": story.request_id,
        "model_name": story.model_name,
        "instance_id": last.instance_id,
        "attempts": len(story.chapters),
        "placed_unix_s": round(story.chapters[0].placed_unix_s, 3),
        "state": _state(last),
        "predicted_ttft_s": prediction and _bounded(prediction.ttft_s),
        "predicted_e2e_s": prediction and _bounded(prediction.e2e_s),
        "ttft_s": (ended and _bounded(ended.ttft_s)) or None,
        "e2e_s": (ended and _bounded(ended.e2e_s)) or None,
        "met": _met(last),
    }


def _state(chapter: Chapter) -> str:
    ended = chapter.ended
    if ended is None:
        return "in progress"
    if ended.finished:
        return "answered" if ended.status < 400 else "refused"
    return "broken" if ended.broken else "given up"


def _met(chapter: Chapter) -> bool | None:
    """Whether it kept its targets; None where it has none, or has not been answered."""
    slo, ended = chapter.decision.spec.slo, chapter.ended
    if not slo.given or ended is None or not ended.finished or ended.status >= 400:
        return None
    return slo.met(ended.ttft_s, ended.tpot_s(chapter.decision.spec.sequences))


def _targets(stories: Stories, since_unix_s: float) -> tuple[int, int]:
    outcomes = [_met(story.chapters[-1]) for story in _since(stories, since_unix_s)]
    return sum(each is not None for each in outcomes), sum(each is True for each in outcomes)


def _since(stories: Stories, unix_s: float) -> Iterator[Story]:
    for story in stories.latest():
        if story.chapters[0].placed_unix_s < unix_s:
            return
        yield story


def _bounded(seconds: float) -> float:
    return round(min(seconds, _LONGEST_S), 4)
