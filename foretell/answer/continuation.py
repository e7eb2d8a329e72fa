"""What is kept of a stream so that another engine can go on with it, without I/O.

The engine is asked for the ids of its tokens (`return_token_ids`), which the client does not get to
see. When it fails in mid-answer, the next engine gets them as output of its own
(`foretell.services.backend.vllm.resume`) and says again all that had been said: `Progress`
leaves out what
the client has. An engine that does not know the field begins anew, which is as good while it says
the same again; where it does not, the stream ends with an error.
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
"""The first event of a stream with token ids has the prompt's too, and must not be too long."""
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
"""Fields with which events are more than texts that follow each other, or hide tokens."""
_HIDDEN = ("token_ids", "prompt_token_ids")
DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


def can_continue(request: ApiRequest, prompt_tokens: int) -> bool:
    """Whether another engine could go on with the answer to `request`."""
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
    """Of a stream with which nobody goes on: its events go to the client as they come."""
    progress = Progress(with_ids=True)
    progress.lose()
    return progress


class Progress:
    """How far a stream has come. It is told of each event with an object, and what it says of the
    event goes to the client."""

    def __init__(
        self, choices: int = 1, *, with_usage: bool = False, with_ids: bool = False
    ) -> None:
        """`with_usage`: the stream is to end with an event that has the counts of tokens;
        `with_ids`: the client has asked for token ids itself."""
        self._usage_due = with_usage
        self.ids_shown = with_ids
        self._prompt_tokens = 0
        self.is_done = False
        """The client has the last event."""
        self._choices = [Choice() for _ in range(choices)]
        self._head: dict[str, Any] = {}
        """What all events have in common: id, creation time and model."""
        self.can_go_on = True
        """What is known is enough to go on: all that was sent is in `_choices`."""
        self._replaces_head = False
        self._was_finished = False
        """A choice had ended before another engine went on."""
        self.alike: Alike | None = None
        """What the last event with a text had in common with the next ones; only where there is one
        choice."""

    @property
    def output_ids(self) -> list[list[int]]:
        return [choice.output_ids for choice in self._choices]

    @property
    def output_tokens(self) -> int:
        return max(map(len, self.output_ids))

    @property
    def stated_tokens(self) -> int:
        """The tokens of all choices whose ids the engine has stated; 0 where it does not."""
        return sum(len(choice.ids) for choice in self._choices) if self.can_go_on else 0

    @property
    def to_resume(self) -> list[list[int]]:
        """What the next engine gets of each choice. One that has ended lacks its last token: it
        ends with it again, as no request can begin at its end."""
        return [each.output_ids[: -1 if each.is_finished else None] for each in self._choices]

    @property
    def states_no_ids(self) -> bool:
        """The engine does not state the ids of its tokens."""
        return not self.can_go_on and not self._has_ids

    @property
    def _has_ids(self) -> bool:
        return any(choice.ids for choice in self._choices)

    @property
    def _is_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    def lose(self) -> None:
        """The client gets something that is not followed here: nobody can go on."""
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
        """The stream states its token ids, and has not said why it ends."""
        return self.can_go_on and self._has_ids and not self._is_finished

    def rest(self) -> bytes | None:
        """What a stream still lacks of which the client has all tokens; None if it has not."""
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
        """What the client gets of an event, which is parsed from `line`; nothing: b"". Raises
        `Diverged`."""
        choices = event.get("choices")
        stated = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        delta = stated.get("delta", stated) if isinstance(stated, dict) else None
        choice = self._choice(stated)
        if choice is None or not isinstance(stated, dict) or not isinstance(delta, dict):
            return self._without_choice(line, event)
        if choice.is_finished and self._replaces_head:
            return b""  # the client has it, from an engine that was lost
        if not understood(delta):
            self.lose()
            return self._told(line, event)
        return self._take_of(choice, line, event, stated, delta)

    def without_ids(self, line: bytes, event: dict[str, Any]) -> bytes:
        """What the client gets of an event where nothing is followed any more."""
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
            return b""  # it came for its ids alone
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
        """An event that tells of the whole answer, or that nobody understands."""
        if self.is_behind:
            raise Diverged
        usage = event.get("usage")
        if not usage or event.get("choices"):
            self.lose()  # nobody knows what it says
        elif self._was_finished and isinstance(usage, dict):
            # What this engine has generated of choices that had ended does not count.
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
        """The event with what it shares with the first one, and the ids that its client asked
        for: `line` if it is that already."""
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
