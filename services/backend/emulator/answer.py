"""From a request to sequences in the engine, and from counted tokens back to text."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from foretell.cosched import job_of
from foretell.engine import Sequence
from foretell.model import EngineConfig
from foretell.services.backend.emulator.driver import EmulatedSequence
from foretell.services.backend.emulator.lengths import EmulatedLengths
from foretell.services.backend.emulator.protocol import GenerationRequest, VllmError
from foretell.services.backend.emulator.text import WORDS, Continuation, text_key

Usage = dict[str, int]
EOS_ID = len(WORDS)
_IDS = {word: index for index, word in enumerate(WORDS)}


class EmulatedChoice:
    """One choice: reads its stream's tokens as text, up to a stop string."""

    def __init__(
        self,
        index: int,
        stream: EmulatedSequence,
        text: Continuation,
        *,
        eos_after: int | None,
        stop: tuple[str, ...],
        min_tokens: int,
        begun: int = 0,
        with_ids: bool = False,
    ) -> None:
        """`eos_after`: number of the output token that ends the sequence; None: no such token.

        `begun`: tokens before those of the stream, which are sent with its first one. `with_ids`:
        whether to keep the ids of tokens.
        """
        self.index = index
        self.stream = stream
        self.tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.new_ids: list[int] | None = [] if with_ids else None
        """Ids of the tokens that were read last; the id of a word is its index in `WORDS`."""
        self._begun = begun
        self._text = text
        self._eos_after = eos_after
        self._stop = stop
        self._min_tokens = min_tokens
        # Text that could be the beginning of a stop string is held back.
        self._hold = max(map(len, stop)) - 1 if stop else 0
        self._held = ""

    @property
    def has_news(self) -> bool:
        return self.finish_reason is None and (self.tokens < self._due or self.stream.finished)

    @property
    def _due(self) -> int:
        """The number of tokens that can be sent."""
        return self.stream.tokens + self._begun if self.stream.tokens else 0

    def read(self) -> str:
        """The text since the last call; sets `finish_reason` when it is the last."""
        ids: list[int] = []
        if self.new_ids is not None:
            self.new_ids = ids
        while self.tokens < self._due:
            self.tokens += 1
            if self.tokens == self._eos_after:
                ids.append(EOS_ID)
                break  # the end-of-sequence token has no text
            word = self._text.next_word()
            ids.append(_IDS[word])
            self._held += f" {word}"
            if self._stop and self._stopped(len(word) + 1):
                return self._held
        if self.stream.finished:
            self.finish_reason = "stop" if self.tokens == self._eos_after else "length"
            return self._held
        said = max(0, len(self._held) - self._hold)
        text, self._held = self._held[:said], self._held[said:]
        return text

    def _stopped(self, new_chars: int) -> bool:
        """Whether the newest word completed a stop string; cuts the text before it."""
        if self.tokens <= self._min_tokens:
            return False
        found = []
        for stop in self._stop:
            begin = self._held.find(stop, max(0, len(self._held) - new_chars - len(stop) + 1))
            if begin >= 0:
                found.append((begin + len(stop), begin, stop))
        if not found:
            return False
        _, begin, self.stop_reason = min(found, key=lambda match: match[0])
        self._held = self._held[:begin]
        self.finish_reason = "stop"
        return True


@dataclass(frozen=True, slots=True)
class EmulatedRequest:
    """One request in the engine: the answers of all its prompts and choices."""

    answers: list[EmulatedChoice]
    prompt_tokens: list[int]
    """Per prompt; answer `i` belongs to prompt `i // n`."""
    choices: int
    wake: asyncio.Event

    def usage(self, answer: EmulatedChoice | None = None) -> Usage:
        """The tokens so far, of one choice or of all."""
        if answer is not None:
            return usage_of(self.prompt_tokens[answer.index // self.choices], answer.tokens)
        return usage_of(sum(self.prompt_tokens), sum(each.tokens for each in self.answers))


def usage_of(prompt_tokens: int, completion_tokens: int) -> Usage:
    """Return token counts in the form of OpenAI's API."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class JobMaker:
    """Turns requests into jobs for one engine."""

    def __init__(self, config: EngineConfig, lengths: EmulatedLengths, max_queue: int) -> None:
        self._config = config
        self._lengths = lengths
        self._max_queue = max_queue

    def make(
        self, request: GenerationRequest, response_id: str, priority: int, now_unix_s: float
    ) -> EmulatedRequest:
        """Raises `VllmError` where vLLM would refuse the request."""
        prompts = request.prompts()
        if not prompts or not all(prompts):
            raise VllmError(400, "The decoder prompt cannot be empty", "prompt")
        if len(prompts) * request.n > self._max_queue:
            raise VllmError(400, f"n: at most {self._max_queue} sequences fit this engine", "n")
        wanted = job_of(request.vllm_xargs or {})
        targets_s = (0.0, 0.0)
        if self._config.co_schedules:
            priority = wanted.priority(priority)
            targets_s = wanted.targets.or_zero_s
        job = EmulatedRequest([], list(map(len, prompts)), request.n, asyncio.Event())
        for number, tokens in enumerate(prompts):
            limit = self._output_limit(request, len(tokens))
            # As in vLLM, the prompt of a chat has no number.
            place = f"-{number}" if request.prompt_field == "prompt" else ""
            engine_id = f"{response_id}{place}-{uuid4().hex[:8]}"
            for choice in range(request.n):
                begun = min(request.output_begun(choice), limit - 1)
                sequence = Sequence(
                    request_id=f"{choice}_{engine_id}" if request.n > 1 else engine_id,
                    prompt_tokens=len(tokens) + begun,
                    stop_after=limit - begun,
                    max_tokens=limit - begun,
                    arrival_s=now_unix_s,
                    priority=priority,
                    targets_s=targets_s,
                )
                answer = self._answer(request, job, sequence, number, tokens, choice, begun)
                job.answers.append(answer)
        return job

    def _answer(
        self,
        request: GenerationRequest,
        job: EmulatedRequest,
        sequence: Sequence,
        number: int,
        tokens: list[str],
        choice: int,
        begun: int,
    ) -> EmulatedChoice:
        key = text_key(None if request.greedy else request.seed, choice)
        eos_after = None
        if not request.ignore_eos:
            drawn = self._lengths.draw(tokens, request.asked(number), key)
            eos_after = max(drawn, request.min_tokens + 1)
            sequence.stop_after = min(sequence.max_tokens, max(1, eos_after - begun))
        stop = request.stop_strings
        stream = EmulatedSequence(sequence, request.tag(), job.wake, bool(request.stream or stop))
        return EmulatedChoice(
            len(job.answers),
            stream,
            Continuation(tokens, key),
            eos_after=eos_after,
            stop=stop,
            min_tokens=request.min_tokens,
            begun=begun,
            with_ids=bool(request.return_token_ids),
        )

    def _output_limit(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Apply vLLM's rules (`TokenizeParams`, `get_max_tokens`): the prompt must leave room for a
        token; `max_tokens` alone must not exceed the model's length, and is cut to the room that
        the prompt leaves."""
        length, asked = self._config.max_model_len, request.output_limit()
        if asked is not None and asked > length:
            chats = getattr(request, "max_completion_tokens", None) is not None
            name = "max_completion_tokens" if chats else "max_tokens"
            raise VllmError(
                400, f"{name}={asked} cannot be greater than max_model_len={length}.", name
            )
        if prompt_tokens >= length:
            raise VllmError(
                400,
                f"This model's maximum context length is {length} tokens. However, your prompt "
                f"contains {prompt_tokens} input tokens, which leaves no room for output tokens.",
                request.prompt_field,
            )
        limit = length - prompt_tokens if asked is None else min(asked, length - prompt_tokens)
        if request.min_tokens > limit:
            raise VllmError(
                400,
                f"min_tokens must be less than or equal to max_tokens={limit}, "
                f"got {request.min_tokens}.",
                "min_tokens",
            )
        return limit
