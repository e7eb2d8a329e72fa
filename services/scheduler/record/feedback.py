"""What ended answers teach the estimators of prompt and output length."""

import asyncio
from contextlib import suppress

from foretell import wire
from foretell.services.scheduler.api.parsing import ApiRequest
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.placing.peers import NoAnswer, answer_of
from foretell.services.scheduler.placing.placer import Estimators
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

_OBSERVE_DEADLINE_S = 5.0  # nobody waits for it
_GATHER_S = 1.0
"""Longer than it takes until the tagger is asked: of requests that it does not know it learns
nothing, and short answers must not be among those more often than others."""
_MOST_TOGETHER = 4096  # the most that a tagger takes in one call


class Feedback:
    """Teaches the estimators that placement reads, and the tagger if there is one."""

    def __init__(
        self,
        estimators: Estimators,
        tagger: tagger_pb2_grpc.TaggerStub | None,
        background: Background,
    ) -> None:
        self._estimators = estimators
        self._tagger = tagger
        self._background = background
        self._waiting: list[tuple[Attempt, tagger_pb2.Observation]] = []

    def learn(self, request: ApiRequest, attempt: Attempt) -> None:
        """Learn from an answer that was accepted by its engine and is whole or abandoned."""
        spec = attempt.spec
        if spec.sequences != 1:
            return  # usage sums over sequences: it does not tell the length of one answer
        if attempt.prompt_tokens and not request.token_ids:
            self._estimators.prompt_tokens.observe(
                request.model, request.characters, len(request.messages), attempt.prompt_tokens
            )
        if spec.turn.prompt and attempt.finished and attempt.prompt_tokens:
            spoken, tokens = self._estimators.spoken, attempt.prompt_tokens
            spoken.check(request.model, spec.turn.before, tokens)
            spoken.note(spec.turn.prompt, tokens + attempt.output_tokens)
        if request.ignore_eos or attempt.output_tokens <= request.min_tokens:
            return  # the length is the client's, not the model's
        prompt_tokens = attempt.prompt_tokens or spec.prompt_tokens
        censored = (
            not attempt.finished
            or attempt.truncated
            or 0 < request.max_tokens <= attempt.output_tokens
        )
        self._estimators.lengths.observe(
            attempt.key, request, prompt_tokens, attempt.output_tokens, censored
        )
        if self._tagger is None:
            return
        observation = tagger_pb2.Observation(
            model_name=request.model,
            prompt_tokens=prompt_tokens,
            output_tokens=attempt.output_tokens,
            censored=censored,
            request_id=attempt.key,
            kind=wire.kind_to_proto(request.kind),
        )
        self._waiting.append((attempt, observation))
        if len(self._waiting) == 1:
            self._background.spawn(self._teach(self._tagger))

    async def _teach(self, tagger: tagger_pb2_grpc.TaggerStub) -> None:
        """Tell the tagger what has gathered about requests that it was asked about, in one call."""
        await asyncio.sleep(_GATHER_S)
        waiting, self._waiting = self._waiting, []
        observations = [each for attempt, each in waiting if attempt.tagged]
        message = tagger_pb2.ObserveRequest(observations=observations[-_MOST_TOGETHER:])
        if not observations:
            return
        with suppress(NoAnswer):  # the next feedback will do as well
            await answer_of(tagger.Observe(message, timeout=_OBSERVE_DEADLINE_S))
