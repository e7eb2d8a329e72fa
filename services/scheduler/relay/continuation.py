"""What is kept of a stream so that another engine can go on with it, without I/O.

The engine is asked for the ids of its tokens (`return_token_ids`), which the client does not get to
see. When it fails in mid-answer, the next engine gets them as output of its own
(`services.backend.vllm.resume`) and says again all that had been said: `Progress` leaves out what
the client has. An engine that does not know the field begins anew, which is as good while it says
the same again; where it does not, the stream ends with an error.
"""

from array import array
from typing import Any

import orjson

from services.scheduler.http.parsing import ParsedRequest

MOST_PROMPT_TOKENS = 100_000
"""The first event of a stream with token ids has the prompt's too, and must not be too long."""
_PATHS = ("/v1/completions", "/v1/chat/completions")
_ALTERING = (
    "echo",
    "functions",
    "include_reasoning",
    "logprobs",
    "prompt_embeds",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "thinking_token_budget",
    "top_logprobs",
    "use_beam_search",
)
"""Fields with which events are more than texts that follow each other, or hide tokens."""
_IDS = b'"token_ids":['
_PROMPT_IDS = b'"prompt_token_ids":['
_HIDDEN = ("token_ids", "prompt_token_ids")
_CHOICES = b',"choices":'
DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""
_TEXTS = ("content", "reasoning", "reasoning_content")


class Diverged(Exception):
    """The engine does not say again what the client has."""


def can_continue(request: ParsedRequest, prompt_tokens: int) -> bool:
    """Whether another engine could go on with the answer to `request`."""
    body = request.body
    return (
        request.stream
        and request.endpoint.path in _PATHS
        and request.sequences == 1
        and prompt_tokens <= MOST_PROMPT_TOKENS
        and not any(name in body for name in _ALTERING)
    )


class Progress:
    """How far a stream has come. It is told of each event with an object, and what it says of the
    event goes to the client."""

    def __init__(self, *, with_usage: bool = False) -> None:
        """`with_usage`: the stream is to end with an event that has the counts of tokens."""
        self._usage_due = with_usage
        self._prompt_tokens = 0
        self._is_finished = False
        """The client has the event that has the reason of the end."""
        self.is_done = False
        """The client has the last event."""
        self._ids = array("l")
        self._known_ids = array("l")
        """The ids of all tokens of the text in `_again`."""
        self._texts: dict[str, list[str]] = {name: [] for name in (*_TEXTS, "text")}
        self._head = b""
        """The beginning of each event, up to its choices: id, creation time and model."""
        self._complete = True
        """All that was sent is in `_texts`, and all tokens in `_ids`."""
        self._role_sent = False
        self._again: dict[str, str] = {}
        """What the engine still has to say again, by field; empty: nothing."""
        self._replaces_head = False

    @property
    def output_ids(self) -> list[int]:
        """The ids of all tokens of which the client has the text, and perhaps some more."""
        return (self._known_ids if self._again else self._ids).tolist()

    @property
    def can_go_on(self) -> bool:
        """Whether what is known is enough to go on."""
        return self._complete

    @property
    def states_no_ids(self) -> bool:
        """The engine does not state the ids of its tokens."""
        return not self._complete and not self._ids

    def lose(self) -> None:
        """The client gets something that is not followed here: nobody can go on."""
        self._complete = False

    def begin_again(self) -> None:
        """Another engine will say all again."""
        self._known_ids, self._ids = array("l", self.output_ids), array("l")
        said = {name: "".join(texts) for name, texts in self._texts.items()}
        self._again = {name: text for name, text in said.items() if text}
        self._replaces_head = bool(self._head)

    @property
    def is_behind(self) -> bool:
        """The engine has not yet said again all that the client has."""
        return bool(self._again)

    @property
    def lacks_end(self) -> bool:
        """The stream states its token ids, and has not said why it ends."""
        return self._complete and bool(self._ids) and not self._is_finished

    def rest(self) -> bytes | None:
        """What a stream still lacks of which the client has all tokens; None if it has not."""
        if self.is_done:
            return b""
        if not self._is_finished:
            return None
        if not self._usage_due:
            return DONE
        prompt, output = self._prompt_tokens, len(self.output_ids)
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
        }
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._head, orjson.dumps(usage), DONE)

    def take_plain(self, line: bytes, event: dict[str, Any]) -> bytes:
        """What `take` says of an event as nearly all are, with a text and its token ids; b"" where
        it is another one, of which nothing was noted. This runs for each chunk of each stream."""
        choices = event.get("choices")
        if self._again or self._replaces_head or "usage" in event or type(choices) is not list:
            return b""
        choice = choices[0] if choices else None
        if type(choice) is not dict:
            return b""
        ids, delta = choice.get("token_ids"), choice.get("delta")
        if type(ids) is not list or choice.get("finish_reason") or choice.get("prompt_token_ids"):
            return b""
        name, text = "text", choice.get("text")
        if delta is not None:
            only = type(delta) is dict and len(delta) == 1
            name, text = "content", delta.get("content") if only else None
        if type(text) is not str or not text:
            return b""
        try:
            self._ids.extend(ids)
        except (TypeError, OverflowError):
            self._complete = False  # they are no ids
        self._texts[name].append(text)
        at = line.rfind(_IDS)
        return line[: at + len(_IDS) - 1] + b"null" + line[line.index(b"]", at) + 1 :]

    def take(self, line: bytes, event: dict[str, Any]) -> bytes:
        """What the client gets of an event, which is parsed from `line`; nothing: b"".

        Raises `Diverged`.
        """
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        delta = choice.get("delta", choice) if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict):
            if self._again:
                raise Diverged
            if not event.get("usage"):
                self.lose()  # nobody knows what it says
            self._usage_due = False
            return self._with_head(line)
        finished = choice.get("finish_reason") is not None
        self._take_ids(choice, delta)
        if not self._prompt_tokens:
            prompt_ids = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
            self._prompt_tokens = len(prompt_ids) if isinstance(prompt_ids, list) else 0
        if self._again or (self._role_sent and "role" in delta):
            left = self._left(event, choice, delta, finished)
            self._is_finished = finished
            return self._with_head(left)
        self._is_finished |= finished
        self._role_sent |= "role" in delta
        for name in self._texts:
            if text := delta.get(name):
                self._texts[name].append(str(text))
        if not delta and not finished:
            return b""  # it came for its ids alone
        return self._with_head(_without_ids(line))

    def _take_ids(self, choice: dict[str, Any], delta: dict[str, Any]) -> None:
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            try:
                self._ids.extend(ids)
            except (TypeError, OverflowError):  # no ids
                self._complete = False
        elif any(delta.get(name) for name in self._texts):
            self._complete = False
        if delta.get("tool_calls"):
            self._complete = False

    def _left(
        self, event: dict[str, Any], choice: dict[str, Any], delta: dict[str, Any], finished: bool
    ) -> bytes:
        """The event without what the client has; b"" where nothing is left."""
        for name, texts in self._texts.items():
            text, known = delta.get(name), self._again.pop(name, "")
            if not isinstance(text, str) or not text:
                rest = known
            elif known.startswith(text):
                delta[name], rest = "", known[len(text) :]
            elif text.startswith(known):
                delta[name], rest = text[len(known) :], ""
                texts.append(delta[name])
            else:
                raise Diverged
            if rest:
                self._again[name] = rest
        delta.pop("role", None)
        is_new = any(delta.get(name) for name in (*self._texts, "tool_calls"))
        if self._again and (is_new or finished):
            raise Diverged
        if not is_new and not finished:
            return b""
        for owner in (event, choice):
            owner.update({name: None for name in _HIDDEN if name in owner})
        return b"data: %b\n\n" % orjson.dumps(event)

    def _with_head(self, line: bytes) -> bytes:
        """The event with the id and the time of the stream's first event."""
        if self._head and not self._replaces_head:
            return line
        at = line.find(_CHOICES)
        if at < 0:
            return line
        if not self._head:
            self._head = line[:at]
        return self._head + line[at:]


def _without_ids(line: bytes) -> bytes:
    """The line as it is where nobody asks for token ids. No text has these bytes: in texts, quotes
    are escaped."""
    for name in (_IDS, _PROMPT_IDS):
        at = line.find(name)
        if at >= 0:
            end = line.index(b"]", at)
            line = line[: at + len(name) - 1] + b"null" + line[end + 1 :]
    return line
