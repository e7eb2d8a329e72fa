"""What would be if the cluster were another, computed on demand by a process of its own.

A simulation takes seconds of CPU time, so it never runs in the event loop that places requests: one
at a time runs beside it, with low priority, and is ended when it takes too long.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foretell.model import LengthEstimate
from foretell.services.process.aside import AsideFailed, computed_aside
from foretell.services.scheduler.api.errors import ApiError, invalid, unavailable
from foretell.services.scheduler.placing.placer import Placer
from foretell.services.scheduler.placing.pool import Pool
from foretell.services.scheduler.placing.stories import Chapter, Stories, Story

logger = logging.getLogger(__name__)

WINDOW_S = 300.0
"""Requests that were placed longer ago are not looked at."""
MOST_ENGINES = 64
LIMIT_S = 120.0
_LEAST_SPAN_S = 1.0
_PROCESS = "foretell.services.scheduler.console.imagine"


class Question(BaseModel):
    """The query of `/console/what-if`."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    """The model whose engines and requests are meant; "": the one with the most requests."""
    instances: int = Field(default=0, ge=-MOST_ENGINES, le=MOST_ENGINES)
    max_num_seqs: int = Field(default=0, ge=0, le=4096)
    traffic: float = Field(default=1.0, ge=0.1, le=10.0)
    replicas: int = Field(default=1, ge=1, le=64)
    """Scheduler replicas that share the traffic: each is taken to have seen as much as this one."""


class WhatIf:
    """Answers to `Question`s on the live state of one replica."""

    def __init__(
        self, placer: Placer, pool: Pool, policy: str, parameters: Mapping[str, Any]
    ) -> None:
        """`policy` and its `parameters` as the settings have them."""
        self._placer = placer
        self._pool = pool
        self._policy = policy
        self._parameters = dict(parameters)
        self._busy = False

    async def answer(self, query: str) -> dict[str, Any]:
        """What was, what the simulation says of it, and what it says with the change.

        Raises `ApiError` where the question is wrong, nothing is known, or another one is being
        answered.
        """
        question = _parsed(query)
        if self._busy:
            raise unavailable("another what-if is being computed", "busy")
        self._busy = True
        try:
            asked = self._asked(question)
            text = await asyncio.to_thread(json.dumps, asked)
            found = await _imagined(text.encode())
        finally:
            self._busy = False
        return {
            "model": asked["question"]["model"],
            "span_s": asked["span_s"],
            "engines": len(asked["engines"]),
            "requests": len(asked["arrivals"]),
            **found,
        }

    def _asked(self, question: Question) -> dict[str, Any]:
        """All that the simulation needs; raises `ApiError` where that is not known."""
        now_unix_s = time.time()
        stories = list(_lately(self._placer.stories, now_unix_s - WINDOW_S))
        model = question.model or _most_asked(stories)
        engines = self._engines(model)
        arrivals = [_arrival(story) for story in reversed(stories) if story.model_name == model]
        if not engines or not arrivals:
            text = "no engine is followed, or no request came lately"
            raise ApiError(409, text, code="nothing_known")
        return {
            "question": {**question.model_dump(), "model": model},
            "engines": engines,
            "arrivals": arrivals,
            "span_s": max(_LEAST_SPAN_S, now_unix_s - arrivals[0]["t_s"]),
            "policy": self._policy,
            "parameters": self._parameters,
        }

    def _engines(self, model: str) -> list[dict[str, Any]]:
        serving = [
            instance_id
            for instance_id, instance in self._pool.instances.items()
            if instance.healthy and model in instance.model_names
        ]
        known = self._placer.predictors.engines(serving)
        if not known:
            return []
        from foretell.engine.plain import plain_engine  # noqa: PLC0415 - needs numpy, as `known`

        return [plain_engine(*each) for each in known[:MOST_ENGINES]]


def _parsed(query: str) -> Question:
    try:
        return Question.model_validate(dict(parse_qsl(query, max_num_fields=8)))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        raise invalid(f"'{name}': {first['msg']}", name) from None
    except ValueError:
        raise invalid("the query has too many fields") from None


def _lately(stories: Stories, since_unix_s: float) -> Iterator[Story]:
    """Those that generate and were placed since, the latest first."""
    for story in stories.latest():
        if story.chapters[0].placed_unix_s < since_unix_s:
            return
        if story.chapters[-1].decision.chosen.prediction is not None:
            yield story


def _most_asked(stories: Sequence[Story]) -> str:
    names = [story.model_name for story in stories]
    return max(set(names), key=names.count, default="")


def _arrival(story: Story) -> dict[str, Any]:
    """One request: as long as it was, or as it is believed to become while it is in progress."""
    first, last = story.chapters[0], story.chapters[-1]
    spec = first.decision.spec
    cached = _cached_tokens(last)
    output = spec.length.expected_tokens
    if last.ended is not None and last.ended.finished and last.ended.output_tokens:
        output = last.ended.output_tokens / spec.sequences
    return {
        "t_s": first.placed_unix_s - first.took_s,
        # What an engine need not compute again costs it nearly nothing.
        "prompt_tokens": max(1, spec.prompt_tokens - cached),
        "output_tokens": max(1, round(output)),
        "priority": spec.priority,
        "ttft_s": _finite(spec.slo.ttft_s),
        "tpot_s": _finite(spec.slo.tpot_s),
        "length": _length(spec.length),
        "met": _met(last),
    }


def _cached_tokens(chapter: Chapter) -> int:
    prediction = chapter.decision.chosen.prediction
    return prediction.cached_tokens if prediction is not None else 0


def _met(chapter: Chapter) -> dict[str, Any] | None:
    """What is known of its answer, if that was whole and its first token was seen."""
    ended = chapter.ended
    if ended is None or not ended.finished or ended.status >= 400 or not ended.ttft_s:
        return None
    tokens = ended.output_tokens // chapter.decision.spec.sequences
    return {"ttft_s": ended.ttft_s, "e2e_s": ended.e2e_s, "output_tokens": tokens}


def _length(length: LengthEstimate) -> list[Any]:
    return [length.expected_tokens, length.quantiles, length.source]


def _finite(seconds: float) -> float | None:
    return None if seconds == inf else seconds


async def _imagined(asked: bytes) -> dict[str, Any]:
    """The answer of a process of its own; raises `ApiError`."""
    try:
        told = await computed_aside(_PROCESS, asked, LIMIT_S)
    except TimeoutError:
        raise unavailable(f"the simulation took more than {LIMIT_S:.0f} s", "too_slow") from None
    except AsideFailed as error:
        logger.error("a what-if failed: %s", error)
        raise ApiError(500, "the simulation failed", code="failed") from None
    answer: dict[str, Any] = json.loads(told)
    if "error" in answer:
        raise invalid(answer["error"])
    return answer
