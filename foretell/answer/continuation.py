"""What is kept of a stream so that another engine can continue it, without I/O.

The engine is asked for the ids of its tokens (`return_token_ids`), which the client does not see.
If it fails in the middle of the answer, the next engine gets the ids as its own output
(`foretell.services.backend.vllm.resume`) and repeats the answer from its beginning; `Progress`
removes what the client has. An engine that does not know this field generates the answer again,
which works as long as it is the same; where it differs, the stream ends with an error.
"""

from collections.abc import Sequence
from typing import Any

from foretell.answer.choice import (
    Alike,
    Choice,
    Diverged,
    alike,
    understood,
)
from foretell.answer.sse import NAMES_FIRST, written
from foretell.openai.parsing import ApiRequest, wants_usage

MOST_PROMPT_TOKENS = 100_000
"""The first event of a stream with token ids has those of the prompt, too; this limits its size."""
_PATHS = ("/v1/completions", "/v1/chat/completions")
_ALTERING = (
    "echo",
    "functions",
    "include_reasoning",
    "prompt_embeds",
    "prompt_logprobs",
    "thinking_token_budget",
    "use_beam_search",
)
"""Fields with which events have more than successive texts, or hide tokens."""
_HIDDEN = ("token_ids", "prompt_token_ids")
DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


def can_continue(request: ApiRequest, prompt_tokens: int) -> bool:
    """Whether another engine could continue the answer to `request`."""
    body = request.body
    return (
        request.stream
        and request.endpoint.path in _PATHS
        and request.sequences == (body.get("n") or 1)  # of a single prompt
        and prompt_tokens <= MOST_PROMPT_TOKENS
        and not any(name in body for name in _ALTERING)
    )


def progress_of(request: ApiRequest) -> "Progress":
    body = request.body
    return Progress(
        request.sequences, with_usage=wants_usage(body), with_ids=bool(body.get("return_token_ids"))
    )


def nothing_followed() -> "Progress":
    """Return the progress of a stream that cannot be continued; its events are not changed."""
    progress = Progress(with_ids=True)
    progress.lose()
    return progress


class Progress:
    """The progress of a stream. `take` gets each event with a JSON object and returns what the
    client gets of it."""

    def __init__(
        self, choices: int = 1, *, with_usage: bool = False, with_ids: bool = False
    ) -> None:
        """`with_usage`: the stream must end with an event that has the token counts; `with_ids`:
        the client has asked for token ids itself."""
        self._usage_due = with_usage
        self.ids_shown = with_ids
        self._prompt_tokens = 0
        self.is_done = False
        """The client has the last event."""
        self._choices = [Choice() for _ in range(choices)]
        self._head: dict[str, Any] = {}
        """The fields that all events share: id, object, creation time and model."""
        self.can_go_on = True
        """Another engine can continue: all that was sent is recorded in `_choices`."""
        self._replaces_head = False
        self._was_finished = False
        """A choice had ended before another engine continued."""
        self.alike: Alike | None = None
        """What the latest text event may share with the next ones; only if there is one choice."""

    @property
    def output_ids(self) -> list[list[int]]:
        return [choice.output_ids for choice in self._choices]

    @property
    def output_tokens(self) -> int:
        return max(map(len, self.output_ids))

    @property
    def stated_tokens(self) -> int:
        """The number of tokens whose ids the engine has stated; 0 if no engine can continue."""
        return sum(len(choice.ids) for choice in self._choices) if self.can_go_on else 0

    @property
    def to_resume(self) -> list[list[int]]:
        """The token ids of each choice for the next engine. The last one of a finished choice is
        left out, to be generated again, because no request can begin at its end."""
        return [each.output_ids[: -1 if each.is_finished else None] for each in self._choices]

    @property
    def states_no_ids(self) -> bool:
        """Whether the engine does not state the ids of its tokens."""
        return not self.can_go_on and not self._has_ids

    @property
    def _has_ids(self) -> bool:
        return any(choice.ids for choice in self._choices)

    @property
    def _is_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    def lose(self) -> None:
        """Stop following, because the client gets something that cannot be recorded here."""
        self.can_go_on, self.alike = False, None

    def begin_again(self) -> None:
        self.alike = None
        for choice in self._choices:
            choice.begin_again()
        self._was_finished = any(choice.is_finished for choice in self._choices)
        self._replaces_head = bool(self._head)

    @property
    def is_behind(self) -> bool:
        return any(choice.is_behind for choice in self._choices)

    @property
    def lacks_end(self) -> bool:
        """Whether the stream states its token ids, but no `finish_reason` for some choice yet."""
        return self.can_go_on and self._has_ids and not self._is_finished

    def rest(self) -> bytes | None:
        """Return what is missing after the last token; None if the client lacks tokens."""
        if self.is_done:
            return b""
        if not self._is_finished:
            return None
        if not self._usage_due:
            return DONE
        prompt, output = self._prompt_tokens, sum(map(len, self.output_ids))
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
        }
        return written({**self._head, "choices": [], "usage": usage}) + DONE

    def take(self, line: bytes, event: dict[str, Any]) -> bytes:
        """Return what the client gets of `event`, which was parsed from `line`; b"" for nothing.
        Raises `Diverged`."""
        choices = event.get("choices")
        stated = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        delta = stated.get("delta", stated) if isinstance(stated, dict) else None
        choice = self._choice(stated)
        if choice is None or not isinstance(stated, dict) or not isinstance(delta, dict):
            return self._without_choice(line, event)
        if choice.is_finished and self._replaces_head:
            return b""  # the client has it from the engine that failed
        if not understood(delta):
            self.lose()
            return self._told(line, event)
        return self._take_of(choice, line, event, stated, delta)

    def without_ids(self, line: bytes, event: dict[str, Any]) -> bytes:
        """Return what the client gets of an event of a stream that is no longer followed."""
        return line if self.ids_shown or not _take_out(event, _HIDDEN) else written(event, line)

    def _take_of(
        self,
        choice: Choice,
        line: bytes,
        event: dict[str, Any],
        stated: dict[str, Any],
        delta: dict[str, Any],
    ) -> bytes:
        if not choice.take_ids(stated, delta):
            self.lose()
        if not self._prompt_tokens:
            prompt_ids = event.get("prompt_token_ids") or stated.get("prompt_token_ids")
            self._prompt_tokens = len(prompt_ids) if isinstance(prompt_ids, list) else 0
        if choice.is_behind or (choice.role_sent and "role" in delta):
            if not choice.take_again(stated, delta, ids_shown=self.ids_shown):
                return b""
            _take_out(event, _HIDDEN[1:])
            return self._told(b"", event)
        choice.take(stated, delta, ids_shown=self.ids_shown)
        if self._may_have_alike(event, stated):
            self.alike = alike(line, choice, stated, delta, ids_shown=self.ids_shown)
        shown = self.ids_shown or bool(stated.get("logprobs"))
        if not (delta or choice.is_finished or shown):
            return b""  # it has nothing but token ids
        return self._told(line, event)

    def _choice(self, stated: object) -> Choice | None:
        index = stated.get("index", 0) if isinstance(stated, dict) else None
        if not isinstance(index, int) or not 0 <= index < len(self._choices):
            return None
        return self._choices[index]

    def _may_have_alike(self, event: dict[str, Any], stated: dict[str, Any]) -> bool:
        return not (
            self._replaces_head
            or len(self._choices) > 1
            or self._choices[0].is_finished
            or stated.get("logprobs")
            or event.get("usage")
            or event.get("prompt_token_ids")
            or stated.get("prompt_token_ids")
        )

    def _without_choice(self, line: bytes, event: dict[str, Any]) -> bytes:
        """What the client gets of an event about the whole answer, or of an unknown kind."""
        if self.is_behind:
            raise Diverged
        usage = event.get("usage")
        if not usage or event.get("choices"):
            self.lose()  # its meaning is unknown
        elif self._was_finished and isinstance(usage, dict):
            # Tokens that this engine has generated for choices that had ended do not count.
            output = sum(map(len, self.output_ids))
            prompt = usage.get("prompt_tokens") or self._prompt_tokens
            event["usage"] = usage | {
                "completion_tokens": output,
                "total_tokens": prompt + output,
            }
            line = b""
        self._usage_due = False
        return self._told(line, event)

    def _told(self, line: bytes, event: dict[str, Any]) -> bytes:
        """The event with the head of the first one, and without ids that the client did not ask
        for; `line` if it needs no change."""
        is_other = not self.ids_shown and _take_out(event, _HIDDEN)
        if self._replaces_head:
            event |= self._head
        elif not self._head:
            self._head = {name: event[name] for name in NAMES_FIRST if name in event}
        return line if line and not (is_other or self._replaces_head) else written(event, line)


def _take_out(event: dict[str, Any], names: Sequence[str]) -> bool:
    choices, found = event.get("choices"), False
    for owner in (event, *(choices if isinstance(choices, list) else ())):
        for name in names if isinstance(owner, dict) else ():
            if owner.get(name) is not None:
                found, owner[name] = True, None
    return found
