"""Estimates for a request that arrives: prompt tokens, prefix hashes and output length."""

from dataclasses import dataclass, field

from foretell.engine.announced import Calibration
from foretell.length import ConversationTokens, PromptTokenEstimator
from foretell.model import RequestSpec
from foretell.openai.parsing import ApiRequest
from foretell.openai.prefixes import Prefix, continued, prefix_of
from foretell.services.scheduler.placing.lengths import FastLengths
from foretell.services.scheduler.placing.tokens import PromptCounter

_NO_PREFIX = Prefix()


@dataclass(frozen=True, slots=True)
class Estimators:
    """Estimators of lengths, and the calibration of predicted quantiles. They learn from finished
    requests."""

    lengths: FastLengths
    prompt_tokens: PromptTokenEstimator
    counter: PromptCounter
    conversation_tokens: ConversationTokens
    announced: Calibration = field(default_factory=Calibration)

    def describe(
        self, key: str, request: ApiRequest, longest: int | None, *, with_prefix: bool
    ) -> RequestSpec:
        """The request as predictors see it, with its prompt tokens counted or estimated.
        `longest`: the longest context of its model, if nothing else limits the answer.
        `with_prefix`: whether to compute the hashes of its prefix."""
        model = request.model
        prompt_tokens = (
            request.token_ids
            or self.counter.count(request)
            or self.prompt_tokens.estimate(model, request.characters, len(request.messages))
        )
        prefix = _NO_PREFIX
        if with_prefix and request.endpoint.generates:
            prefix = prefix_of(request, prompt_tokens)
            if spoken_tokens := self.conversation_tokens.of(model, prefix.turn.before):
                prompt_tokens, prefix = continued(prefix, prompt_tokens, spoken_tokens)
        return RequestSpec(
            request_id=key,
            prompt_tokens=prompt_tokens,
            max_tokens=request.max_tokens,
            length=self.lengths.estimate(key, request, prompt_tokens, longest),
            priority=request.priority,
            sequences=request.sequences,
            prefix=prefix.hashes,
            prefix_chunk_tokens=prefix.chunk_tokens,
            turn=prefix.turn,
            slo=request.terms.slo,
            x_request_id=request.request_id,
        )
