"""Sends requests as a scheduler would, and records what was predicted and what happened."""

import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from foretell.length.history import LengthHistory
from foretell.model import LengthEstimate, RequestSpec
from foretell.services.scheduler.placing.following import Seen
from foretell.tools.follower import Follower
from foretell.tools.live.recording import Served
from foretell.tools.live.stream import NoStream, StreamClient, Timing, completion, random_prompt
from foretell.workload import Arrival

_REQUEST_DEADLINE_S = 300.0
_ANSWER_DELAY_WEIGHT, _LONGEST_ANSWER_DELAY_S = (
    0.1,
    2.0,
)  # foretell.services.scheduler.placing.pool's


@dataclass(slots=True)
class Session:
    """One engine and its predictor under the load of a measurement.

    All of the engine's requests must be sent here: the predictor does not know the lengths of
    others, and the simple predictors do not know of others at all.
    """

    model: str
    client: StreamClient
    predictor: Follower
    seed: int
    secret_key: str = ""
    """The entry of `vllm_xargs` by which only the engine learns a request's length; empty: lengths
    are not secret."""
    most_tokens: int = 0
    """The limit of tokens of requests whose length is secret."""
    served: list[Served] = field(default_factory=list)
    answer_delay_s: float = 0.0
    history: LengthHistory = field(default_factory=LengthHistory)
    """Estimates secret lengths from earlier ones."""

    async def fill(self, request: Arrival) -> None:
        """Send one request that is neither predicted nor recorded; raises `NoStream`."""
        spec = self._spec(request)
        await self._complete(spec, self._body(spec, request.output_tokens), request)

    async def serve(self, request: Arrival, *, measured: bool) -> None:
        """Predict and send one request, and record both results; raises `NoStream`."""
        spec = self._spec(request)
        body = self._body(spec, request.output_tokens)
        asked = time.time()
        answer = self.predictor.predict(spec)
        if answer is None:
            raise NoStream("the predictor has fallen silent")
        answer_delay_s = self.answer_delay_s
        decided = time.time()
        timing, completed, seen = await self._complete(spec, body, request)
        self.served.append(
            Served(
                request_id=spec.request_id,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                measured=measured,
                asked_unix_s=asked,
                decided_unix_s=decided,
                first_unix_s=timing.first_unix_s,
                last_unix_s=timing.last_unix_s,
                completed_unix_s=completed,
                predicted_ttft_s=answer.ttft_s,
                predicted_e2e_s=answer.e2e_s,
                answer_delay_s=answer_delay_s,
                snapshot_age_s=answer.snapshot_age_s,
                calibration_steps=answer.calibration_steps,
                engine_ttft_s=seen.ttft_s,
                max_tokens=spec.max_tokens if self.secret_key else 0,
                expected_tokens=spec.length.expected_tokens,
                quantiles=spec.length.quantiles,
            )
        )

    async def _complete(
        self, spec: RequestSpec, body: dict[str, Any], request: Arrival
    ) -> tuple[Timing, float, Seen]:
        """Send a request; return when its tokens came, when it ended (Unix time), and what the
        predictor saw of it."""
        sent = time.time()
        self.predictor.reserve(spec)
        timing = await self.client.complete(body, _REQUEST_DEADLINE_S)
        if timing.output_tokens != request.output_tokens:
            raise NoStream(
                f"{request.request_id}: the engine made {timing.output_tokens} tokens "
                f"of {request.output_tokens}"
            )
        self.history.observe(self.model, request.prompt_tokens, request.output_tokens)
        completed = time.time()
        seen = await self.predictor.ended(spec)
        if seen.ttft_s:
            self._learn(timing.first_unix_s - sent - seen.ttft_s)
        return timing, completed, seen

    def _spec(self, request: Arrival) -> RequestSpec:
        """The request as predictor and engine learn of it."""
        name, prompt, output = request.request_id, request.prompt_tokens, request.output_tokens
        if not self.secret_key:
            return RequestSpec(name, prompt, output, LengthEstimate(float(output), source="hint"))
        length = self.history.estimate(self.model, prompt, self.most_tokens)
        return RequestSpec(name, prompt, self.most_tokens, length)

    def _learn(self, sample_s: float) -> None:
        sample_s = min(_LONGEST_ANSWER_DELAY_S, max(0.0, sample_s))
        self.answer_delay_s += _ANSWER_DELAY_WEIGHT * (sample_s - self.answer_delay_s)

    def _body(self, spec: RequestSpec, output_tokens: int) -> dict[str, Any]:
        """The completion request, as the scheduler (`for_engine`) would forward it."""
        secret = {self.secret_key: output_tokens} if self.secret_key else {}
        return completion(
            self.model,
            random_prompt(Random(f"{self.seed} {spec.request_id}"), spec.prompt_tokens),
            spec.max_tokens,
            {
                "foretell_id": spec.request_id,
                "foretell_predicted_tokens": round(spec.length.expected_tokens, 1),
                **secret,
            },
            ignore_eos=not self.secret_key,
        )
