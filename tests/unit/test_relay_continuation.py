"""Streams that break off anywhere, and are continued by another engine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from foretell.answer.continuation import Progress, can_continue
from foretell.answer.framing import Broken, End, Event, Lines
from foretell.answer.stream import LONGEST_EVENT_BYTES, StreamFraming
from foretell.openai.parsing import parse
from foretell.openai.surface import ENDPOINTS

RECORDED = Path(__file__).parents[1] / "data" / "vllm_answers"
"""Streams of vLLM 0.32 with token ids."""
STREAMS = {
    name: (RECORDED / f"{name}.sse").read_bytes()
    for name in ("chat-token-ids", "completion-token-ids")
}
DONE = b"data: [DONE]\n\n"
_IDS = re.compile(rb'"(prompt_token_ids|token_ids)":\[[0-9,]*\]')


def without_ids(stream: bytes) -> bytes:
    """The stream that vLLM sends without a request for token ids."""
    return _IDS.sub(rb'"\1":null', stream)


def from_another(stream: bytes) -> bytes:
    """The same answer from another engine, with another id and clock."""
    other = re.sub(rb'"id":"[^"]*"', b'"id":"another"', stream)
    return re.sub(rb'"created":[0-9]*', b'"created":7', other)


def resumed(stream: bytes, output_ids: list[int]) -> bytes:
    """The answer of an engine that got these tokens in its request: all are in its first event."""
    events = [part for part in from_another(stream).split(b"\n\n") if part]
    made: list[bytes] = []
    lump: dict[str, Any] | None = None
    count = 0
    for part in events:
        event = json.loads(part[6:]) if part.startswith(b"data: {") else {}
        choice = (event.get("choices") or [{}])[0]
        ids = choice.get("token_ids") or []
        count += len(ids)
        if lump is not None:
            first = lump["choices"][0]
            choice["token_ids"] = first["token_ids"] + ids
            for field in ("delta", "text"):
                if field == "text" and field in choice:
                    choice["text"] = first["text"] + choice["text"]
                elif field in choice and field in first:
                    choice["delta"]["content"] = (
                        first["delta"]["content"] + choice["delta"]["content"]
                    )
            lump = None
        if ids and count <= len(output_ids):
            lump = event
        elif event:
            made.append(b"data: " + json.dumps(event, separators=(",", ":")).encode())
        else:
            made.append(part)
    return b"".join(part + b"\n\n" for part in made)


def answer_of(stream: bytes) -> dict[str, Any]:
    """What a client gets from a stream, however it is cut into events."""
    folded: dict[str, Any] = {"text": "", "roles": 0, "heads": set(), "ends": []}
    for part in stream.split(b"\n\n"):
        if part == b"data: [DONE]":
            folded["ends"].append("done")
        elif part:
            event = json.loads(part.removeprefix(b"data: "))
            folded["heads"].add((event["id"], event["created"]))
            for choice in event["choices"]:
                delta = choice.get("delta", choice)
                folded["text"] += delta.get("content") or delta.get("text") or ""
                folded["roles"] += "role" in delta
                if choice["finish_reason"]:
                    folded["ends"].append(choice["finish_reason"])
    return folded


def fed(framing: StreamFraming, data: bytes, *, broken: bool = False) -> tuple[bytes, Event]:
    """What the client gets of a stream that ends or breaks off, and the last event."""
    events = framing.feed(data) if data else []
    if not framing.ended:
        events += framing.feed_break("connection_lost") if broken else framing.feed_end()
    lines = [each.data for each in events if isinstance(each, Lines | End)]
    return b"".join(lines), events[-1]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_an_undisturbed_stream_is_as_if_nobody_had_asked_for_ids(name: str, size: int) -> None:
    stream, framing, out = STREAMS[name], StreamFraming(Progress()), b""
    for at in range(0, len(stream), size):
        for event in framing.feed(stream[at : at + size]):
            assert isinstance(event, Lines)
            out += event.data
    assert framing.feed_end() == [End(b"", truncated=True)]
    assert out == without_ids(stream)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("way", ["resumes", "begins anew"])
def test_a_stream_that_is_cut_anywhere_goes_on_as_it_was(name: str, way: str) -> None:
    """Cut after every byte; the engine that continues is cut again, as far behind."""
    stream, whole = STREAMS[name], answer_of(without_ids(STREAMS[name]))
    for cut in range(1, len(stream) - 1):
        progress = Progress()
        out, end = fed(StreamFraming(progress), stream[:cut], broken=True)
        assert progress.can_go_on
        for again in () if isinstance(end, End) else (cut // 2, cut + 150, None):
            progress.begin_again()
            (told,) = progress.output_ids
            later = resumed(stream, told) if way == "resumes" else from_another(stream)
            more, end = fed(StreamFraming(progress), later[:again], broken=again is not None)
            out += more
            if isinstance(end, End):
                break
        found = answer_of(out)
        if not out.startswith(b"data: {") or len(found["heads"]) > 1:
            raise AssertionError(out)
        assert (found["text"], found["roles"]) == (whole["text"], whole["roles"]), cut
        assert found["ends"] == whole["ends"], cut
        if way == "begins anew" and b"another" not in out:
            assert out == without_ids(stream), cut


def test_the_counts_are_told_where_only_they_are_missing() -> None:
    stream, progress = STREAMS["chat-token-ids"], Progress(with_usage=True)
    out, end = fed(StreamFraming(progress), stream.removesuffix(DONE), broken=True)
    assert isinstance(end, End)
    assert out.startswith(without_ids(stream.removesuffix(DONE)))
    last = json.loads(out.removesuffix(b"\n\n" + DONE).rpartition(b"data: ")[2])
    assert last["usage"] == {"prompt_tokens": 20, "total_tokens": 25, "completion_tokens": 5}
    assert last["id"] == json.loads(stream.partition(b"\n")[0][6:])["id"]


def test_tokens_of_an_engine_that_fell_behind_do_not_count() -> None:
    stream, progress = STREAMS["chat-token-ids"], Progress()
    fed(StreamFraming(progress), stream[:900], broken=True)
    told = progress.output_ids
    assert told == [[3125, 3358]]
    progress.begin_again()
    out, _ = fed(StreamFraming(progress), stream.replace(b"[3125]", b"[1,2,3]")[:700], broken=True)
    assert out == b""
    progress.begin_again()
    assert progress.output_ids == told


def test_an_engine_that_says_something_else_ends_the_stream() -> None:
    stream, progress = STREAMS["chat-token-ids"], Progress()
    fed(StreamFraming(progress), stream[:900], broken=True)
    progress.begin_again()
    out, end = fed(StreamFraming(progress), stream.replace(b" fobo", b" fob0"))
    assert out == b""
    assert end == Broken("diverged")
    assert not progress.can_go_on


@pytest.mark.parametrize(
    "hidden",
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"token_ids":[1]}]}\n\n',
        b': a comment\ndata: {"choices":[]}\n\n',
        b'data: {"choices":[{"delta":{"content":"x"},"token_ids":["a"]}]}\n\n',
        b'data: {"choices":["x"]}\n\n',
        b'data: {"choices":[{"delta":7,"token_ids":[1]}]}\n\n',
        b"data: {" + b" " * (LONGEST_EVENT_BYTES + 1),
    ],
)
def test_nobody_goes_on_where_not_all_is_known(hidden: bytes) -> None:
    begun = STREAMS["chat-token-ids"][:700]
    at = begun.rindex(b"\n\n") + 2
    for pieces in ([begun[:at] + hidden], [begun[:at], hidden]):
        progress = Progress()
        framing = StreamFraming(progress)
        for piece in pieces:
            framing.feed(piece)
        assert not progress.can_go_on


@pytest.mark.parametrize("end", ["error", "abort"])
def test_an_engine_that_gives_up_says_nothing_to_the_client(end: str) -> None:
    stream, progress = STREAMS["completion-token-ids"], Progress()
    at = stream.index(b"\n\n") + 2
    last = b'data: {"error":{"message":"EngineDeadError","code":500}}\n\ndata: [DONE]\n\n'
    if end == "abort":
        last = b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'
    out, event = fed(StreamFraming(progress), stream[:at] + last)
    assert out == without_ids(stream[:at])
    assert event == Broken("error_event" if end == "error" else "aborted")
    assert progress.can_go_on


def spaced(stream: bytes) -> bytes:
    """The stream of an engine that writes JSON with spaces."""
    events = [part.removeprefix(b"data: ") for part in stream.split(b"\n\n") if part]
    texts = [json.dumps(json.loads(e)).encode() if e[:1] == b"{" else e for e in events]
    return b"".join(b"data: %b\n\n" % text for text in texts)


def sorted_backwards(stream: bytes) -> bytes:
    """The stream with the fields of each event in reverse order."""
    events = [part.removeprefix(b"data: ") for part in stream.split(b"\n\n") if part]
    turned = [dict(reversed(json.loads(e).items())) if e[:1] == b"{" else None for e in events]
    texts = [json.dumps(t).encode() if t else e for t, e in zip(turned, events, strict=True)]
    return b"".join(b"data: %b\n\n" % text for text in texts)


def in_two_lines(stream: bytes) -> bytes:
    """The stream with the data of each event in two lines."""
    return stream.replace(b',"choices":', b',\ndata: "choices":')


FORMS = {
    "as vLLM": lambda stream: stream,
    "spaces": spaced,
    "CRLF": lambda stream: stream.replace(b"\n", b"\r\n"),
    "CR": lambda stream: stream.replace(b"\n", b"\r"),
    "no blank": lambda stream: stream.replace(b"data: ", b"data:"),
    "spaces and CRLF": lambda stream: spaced(stream).replace(b"\n", b"\r\n"),
    "another order": sorted_backwards,
    "two lines": in_two_lines,
    "comments": lambda stream: b": on its way\n\n" + stream.replace(b"data: {", b":\ndata: {"),
    "escaped": lambda stream: stream.replace(b"token_ids", b"tok\\u0065n_ids"),
}
"""The same stream in every form that the standard allows."""


def data_in(stream: bytes) -> list[Any]:
    """The data of each event, read by the standard."""
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events = []
    for part in lines.split(b"\n\n"):
        data = [line[5:].removeprefix(b" ") for line in part.split(b"\n") if line[:5] == b"data:"]
        if data:
            text = b"\n".join(data)
            events.append(json.loads(text) if text != b"[DONE]" else "done")
    return events


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("form", FORMS)
def test_in_every_lawful_form_a_stream_says_the_same_and_no_ids(name: str, form: str) -> None:
    stream = FORMS[form](STREAMS[name])
    for size in (1, 7, 64, len(stream)):
        progress = Progress()
        framing = StreamFraming(progress)
        out = b""
        for at in range(0, len(stream), size):
            for event in framing.feed(stream[at : at + size]):
                assert isinstance(event, Lines)
                out += event.data
        assert not framing.ended
        assert b"".join(e.data for e in framing.feed_end() if isinstance(e, End | Lines)) == b""
        shown = [e for e in data_in(out) if e == "done" or answered(e)]
        wanted = [e for e in data_in(without_ids(STREAMS[name])) if e == "done" or answered(e)]
        assert shown == wanted
        assert progress.can_go_on
        assert progress.output_tokens > 0


def answered(event: dict[str, Any]) -> bool:
    """Whether it adds something: events only for token ids are left out."""
    choice = event["choices"][0] if event["choices"] else {}
    return bool(choice.get("delta", choice.get("text")) or choice.get("finish_reason"))


@pytest.mark.parametrize("form", FORMS)
def test_ids_that_come_late_or_with_other_things_do_not_reach_the_client(form: str) -> None:
    """The first events have no ids, or an event has several choices or unknown ones."""
    text = {"index": 0, "text": "a", "finish_reason": None}
    late = {"index": 0, "text": "b", "finish_reason": None, "token_ids": [5], "logprobs": None}
    head = {"id": "x", "object": "text_completion", "created": 1, "model": "m"}
    for choices in ([[text], [late]], [[late, {**late, "index": 1}]], [[{**late, "index": 9}]]):
        events = [
            {**head, "choices": each, "prompt_token_ids": [1, 2], "usage": None} for each in choices
        ]
        stream = b"".join(
            b"data: %b\n\n" % json.dumps(e, separators=(",", ":")).encode() for e in events
        )
        framing = StreamFraming(Progress())
        out = b"".join(e.data for e in framing.feed(FORMS[form](stream)) if isinstance(e, Lines))
        out += b"".join(e.data for e in framing.feed_end() if isinstance(e, Lines | End))
        assert len(data_in(out)) == len(events)
        for event in data_in(out):
            assert not event.get("prompt_token_ids")
            assert not any(choice.get("token_ids") for choice in event["choices"])


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("stop", ["x"], True),
        ("tools", [{"type": "function"}], True),
        ("n", 2, True),
        ("stream", False, False),
        ("logprobs", True, True),
        ("return_token_ids", True, True),
        ("prompt_logprobs", 1, False),
    ],
)
def test_what_can_be_continued(field: str, value: object, expected: bool) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    request = parse(ENDPOINTS["/v1/chat/completions"], json.dumps(body | {field: value}).encode())
    assert can_continue(request, 10) is expected
    assert not can_continue(request, 1_000_000)
