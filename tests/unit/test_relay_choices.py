"""Streams of several choices, with log probabilities, token ids and tool calls, that break off."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from foretell.answer.continuation import DONE, Progress
from foretell.answer.framing import Broken, End, Event, Lines
from foretell.answer.stream import StreamFraming

TOKENS = 5


class Engine:
    """An engine that answers like any other to a request for `n` choices."""

    def __init__(self, name: str, n: int = 1, *, chat: bool = True, **asked: bool) -> None:
        self.name = name
        self.n = n
        self.chat = chat
        self.asked = asked

    def stream(self, told: Sequence[Sequence[int]] = ()) -> bytes:
        """Its answer; the tokens in `told` come all in one event, with the next one."""
        return b"".join(b"data: %b\n\n" % part for part in self._parts(told)) + DONE

    def _parts(self, told: Sequence[Sequence[int]]) -> Iterator[bytes]:
        known = [len(each) for each in told] or [0] * self.n
        for index in range(self.n) if self.chat else ():
            yield self._event(index, {"delta": {"role": "assistant", "content": ""}}, [])
        for step in range(TOKENS):
            for index in range(self.n):
                if step >= known[index] - (known[index] == TOKENS):
                    first = 0 if step == known[index] else step
                    yield self._said(index, first, step)
        count = {"completion_tokens": self.n * TOKENS, "prompt_tokens": 3, "total_tokens": 99}
        yield self._json({"choices": [], "usage": count})

    def _said(self, index: int, first: int, last: int) -> bytes:
        numbers = range(first, last + 1)
        ids = [100 * (index + 1) + number for number in numbers]
        choice: dict[str, Any] = self._text(index, numbers)
        if self.asked.get("logprobs"):
            entries = [{"token": f"t{each}", "logprob": -each / 7} for each in ids]
            choice["logprobs"] = {"content": entries}
            if not self.chat:
                rows = [[each[name] for each in entries] for name in ("token", "logprob")]
                choice["logprobs"] = {"tokens": rows[0], "token_logprobs": rows[1]}
        if last == TOKENS - 1:
            choice["finish_reason"] = "stop"
        return self._event(index, choice, ids)

    def _text(self, index: int, numbers: range) -> dict[str, Any]:
        text = "".join(f" w{index}{number}" for number in numbers)
        if not self.chat:
            return {"text": text}
        if not self.asked.get("tools"):
            return {"delta": {"content": text}}
        calls: list[dict[str, Any]] = []  # two tokens of content, one of name, then arguments
        if numbers[-1] >= 2:
            call = {"id": f"call-{self.name}", "type": "function", "index": 0}
            if 2 in numbers:
                calls.append(call | {"function": {"name": "look"}})
            if arguments := "".join(f'"{number}",' for number in numbers if number > 2):
                calls.append({"index": 0, "function": {"arguments": arguments}})
        content = "".join(f" w{number}" for number in numbers if number < 2)
        delta: dict[str, Any] = {"content": content} if content else {}
        return {"delta": delta | ({"tool_calls": calls} if calls else {})}

    def _event(self, index: int, choice: dict[str, Any], ids: list[int]) -> bytes:
        stated = {"index": index, "finish_reason": None, "token_ids": ids, **choice}
        return self._json({"choices": [stated]})

    def _json(self, event: dict[str, Any]) -> bytes:
        head = {"id": self.name, "created": len(self.name), "model": "m"}
        return json.dumps(head | event, separators=(",", ":")).encode()


def folded(stream: bytes) -> dict[str, Any]:
    """What a client gets from a stream, however it is cut into events."""
    found: dict[str, Any] = {"heads": set(), "usage": None, "done": stream.count(DONE)}
    for part in stream.replace(DONE, b"").split(b"\n\n")[:-1]:
        event = json.loads(part.removeprefix(b"data: "))
        found["heads"].add((event["id"], event["created"]))
        found["usage"] = event.get("usage") or found["usage"]
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            mine = found.setdefault(
                choice["index"], {"ends": [], "ids": [], "roles": 0, "calls": 0}
            )
            mine["roles"] += "role" in delta
            mine["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            mine["ids"] += choice["token_ids"] or []
            _add(mine, "text", delta.get("content") or delta.get("text") or "")
            for call in delta.get("tool_calls") or ():
                mine["calls"] += "id" in call
                for field, text in call["function"].items():
                    _add(mine, field, text)
            for field, entries in (choice.get("logprobs") or {}).items():
                mine[field] = mine.get(field, []) + entries
    return found


def _add(mine: dict[str, Any], field: str, text: str) -> None:
    mine[field] = mine.get(field, "") + text


def fed(progress: Progress, data: bytes, *, broken: bool) -> tuple[bytes, Event]:
    framing = StreamFraming(progress)
    events = framing.feed(data)
    if not framing.ended:
        events += framing.feed_break("connection_lost") if broken else framing.feed_end()
    return b"".join(each.data for each in events if isinstance(each, Lines | End)), events[-1]


@pytest.mark.parametrize("way", ["resumes", "begins anew"])
@pytest.mark.parametrize(
    ("n", "asked"),
    [
        (2, {}),
        (3, {"chat": False}),
        (1, {"logprobs": True}),
        (2, {"logprobs": True, "chat": False}),
        (1, {"ids": True}),
        (2, {"ids": True, "logprobs": True}),
        (1, {"tools": True}),
        (2, {"tools": True, "logprobs": True}),
    ],
)
def test_what_is_cut_anywhere_goes_on_as_it_was(n: int, asked: dict[str, bool], way: str) -> None:
    """At ends of events and elsewhere; the engine that continues breaks off, too."""
    shown = asked.get("ids", False)
    stream = Engine("first", n, **asked).stream()
    wanted, end = fed(Progress(n, with_ids=shown, with_usage=True), stream, broken=False)
    assert isinstance(end, End)
    whole = folded(wanted)
    assert whole[0]["ids"] == ([100 + number for number in range(TOKENS)] if shown else [])
    ends = [at for at in range(1, len(stream)) if stream[at - 2 : at] == b"\n\n"]
    for cut in {*range(1, len(stream), 31), *ends, *(at - 1 for at in ends)}:
        progress = Progress(n, with_ids=shown, with_usage=True)
        out, end = fed(progress, stream[:cut], broken=True)
        for name, until in (("b", cut // 2 + 1), ("cc", cut + 200), ("ddd", None)):
            if isinstance(end, End):
                break
            assert progress.can_go_on
            told = progress.to_resume if way == "resumes" else ()
            progress.begin_again()
            later = Engine(name, n, **asked).stream(told)[:until]
            more, end = fed(progress, later, broken=until is not None)
            out += more
        found = folded(out)
        assert len(found.pop("heads")) == 1, cut
        assert found.pop("usage")["completion_tokens"] == n * TOKENS, cut
        assert found == {name: whole[name] for name in found}, cut


def test_a_choice_that_had_ended_is_told_without_its_last_token_and_counted_once() -> None:
    engine = Engine("first", 2)
    stream = engine.stream()
    cut = stream.index(b'"finish_reason":"stop"')
    progress = Progress(2, with_usage=True)
    fed(progress, stream[: stream.index(b"\n\n", cut) + 2], broken=True)
    assert list(map(len, progress.output_ids)) == [TOKENS, TOKENS - 1]
    assert list(map(len, progress.to_resume)) == [TOKENS - 1, TOKENS - 1]
    progress.begin_again()
    # The next engine draws another token for the choice that had ended, and counts differently.
    other = engine.stream(progress.to_resume).replace(
        b'"completion_tokens":10', b'"completion_tokens":77'
    )
    out, _ = fed(progress, other, broken=False)
    assert folded(out)["usage"] == {
        "completion_tokens": 10,
        "prompt_tokens": 3,
        "total_tokens": 13,
    }
    assert 0 not in folded(out)


def test_arguments_that_are_others_end_the_stream() -> None:
    progress = Progress()
    stream = Engine("first", tools=True).stream()
    fed(progress, stream[: stream.index(b'\\"4\\"')], broken=True)
    progress.begin_again()
    _, end = fed(progress, stream.replace(b'\\"3\\"', b'\\"9\\"'), broken=False)
    assert isinstance(end, Broken)
    assert end.reason == "diverged"
    assert not progress.can_go_on
