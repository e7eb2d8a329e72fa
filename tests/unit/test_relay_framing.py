"""Engines' answers, cut in every way in which a network may cut them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.answer import framing, stream
from foretell.answer.framing import (
    Broken,
    End,
    Event,
    Lines,
    Usage,
    WholeFraming,
)
from foretell.answer.sse import LineEnds
from foretell.answer.stream import StreamFraming

RECORDED = Path(__file__).parents[1] / "data" / "vllm_answers"
STREAMS = {path.stem: path.read_bytes() for path in sorted(RECORDED.glob("*.sse"))}
WHOLES = {path.stem: path.read_bytes() for path in sorted(RECORDED.glob("*.json"))}
"""Answers of vLLM 0.32; the README.md beside them tells how they were recorded."""

ERROR = b'data: {"error":{"message":"EngineDeadError","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


def text_event(text: str, **choice: Any) -> bytes:
    """An event of a completion, in vLLM's format."""
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": None, **choice}]
    body = {"id": "cmpl-1", "object": "text_completion", "choices": choices}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


@dataclass
class Seen:
    """The result of framing one answer."""

    out: bytes = b""
    facts: list[Event] = field(default_factory=list)
    """All events except lines, in order."""

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Lines):
                assert event.data
                assert event.data.endswith(b"\n\n") or event is events[-2]
                self.out += event.data
                continue
            if isinstance(event, End):  # where the last bytes come depends on the cuts
                self.out += event.data
                self.facts.append(End(b"", event.truncated))
            else:
                self.facts.append(event)


def read(chunks: list[bytes], *, broken: bool = False) -> Seen:
    """Feed a stream in these chunks, then its end or a break."""
    fed, seen = StreamFraming(), Seen()
    for chunk in chunks:
        if chunk and not fed.ended:
            passed_on = fed.pass_on(chunk) if seen.out else None  # as a transfer does
            seen.take(fed.feed(chunk) if passed_on is None else [Lines(passed_on)])
    if not fed.ended:
        seen.take(fed.feed_break("connection_lost") if broken else fed.feed_end())
    assert fed.ended
    return seen


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_cut_at_any_place_a_stream_says_the_same(name: str, line_end: bytes) -> None:
    stream = STREAMS[name].replace(b"\n", line_end)
    whole = read([stream])
    assert whole.out == STREAMS[name]
    assert isinstance(whole.facts[-1], End)
    assert read([stream[i : i + 1] for i in range(len(stream))]) == whole
    for cut in range(len(stream)):
        assert read([stream[:cut], stream[cut:]]) == whole


@pytest.mark.parametrize("name", STREAMS)
def test_a_break_at_any_place_says_what_went_out(name: str) -> None:
    stream = STREAMS[name]
    for cut in range(len(stream)):
        seen = read([stream[:cut]], broken=True)
        assert (
            seen.out
            == stream[: stream.rfind(b"\n\n", 0, cut) + 2 if b"\n\n" in stream[:cut] else 0]
        )
        assert seen.facts[-1] == Broken("connection_lost"), cut


def test_an_engine_that_dies_says_so_in_its_stream() -> None:
    assert read([STREAMS["completion-engine-died"]]).facts == [
        Broken("error_event"),
        End(b"", truncated=False),
    ]


def test_usage_and_truncation_of_a_recorded_stream() -> None:
    assert read([STREAMS["completion-usage"]]).facts == [Usage(3, 6, 0), End(b"", truncated=True)]
    assert read([STREAMS["chat"]]).facts == [End(b"", truncated=True)]
    counts = [
        event.output_tokens
        for event in read([STREAMS["chat-continuous-usage"]]).facts
        if isinstance(event, Usage)
    ]
    assert counts == [0, 1, 2, 3, 4, 4]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_goes_out_and_cuts_do_not_matter(seed: int) -> None:
    """Random events, garbage and line ends, cut at random; the test's name has the seed."""
    rng = Random(seed)
    pieces = [
        *STREAMS.values(),
        text_event("a"),
        text_event("", finish_reason="length"),
        text_event("ab", token_ids=[1, 2]),
        text_event('"role":"finish_reason":null'),
        ERROR,
        DONE,
        b": a comment\n",
        b"data: {\n\n",
        b'data: {"choices": [{"text": "spaced", "finish_reason": null}]}\n\n',
        b'data: {"choices":5,"usage":[],"role":1}\n\n',
        b'data: {"choices":[null,{"finish_reason":["length"],"delta":"x"}]}\n\n',
        b"\r\n",
        b"\x00\xff\xfe",
        b"no line end",
        b"\n",
    ]
    stream = b"".join(rng.choices(pieces, k=rng.randint(1, 12)))
    broken = rng.random() < 0.5
    whole = read([stream], broken=broken)
    cuts = sorted(rng.choices(range(len(stream) + 1), k=rng.randint(0, 40)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(chunks, broken=broken) == whole
    unix = LineEnds().unix(stream)
    if whole.out:  # from the beginning, everything or all whole events
        assert (unix.rstrip(b"\n") + b"\n\n").startswith(whole.out) or unix.startswith(whole.out)
        rest = unix[len(whole.out) :]
        assert b"\n\n" not in rest
        assert broken or not rest.strip()
    else:
        assert isinstance(whole.facts[-1], Broken)


@pytest.mark.parametrize("end", [DONE, b"", None])
def test_an_error_that_comes_first_is_a_break_before_anything_went_out(end: bytes | None) -> None:
    """As vLLM answers when its engine core has died behind the HTTP server."""
    chunks = [ERROR[:9], ERROR[9:] + end] if end is not None else [ERROR.rstrip()]
    seen = read(chunks)
    assert (seen.out, seen.facts) == (b"", [Broken("error_event")])


def test_an_error_in_mid_answer_is_told_before_the_lines_that_hold_it() -> None:
    stream = StreamFraming()
    stream.feed(text_event("a"))
    told = Broken("error_event")
    assert stream.feed(text_event("b") + ERROR) == [Lines(text_event("b")), told, Lines(ERROR)]
    assert stream.feed(DONE) == [Lines(DONE)]
    assert stream.feed_end() == [End(b"", truncated=False)]


def test_an_error_without_a_line_end_is_told_too() -> None:
    stream = StreamFraming()
    stream.feed(text_event("a"))
    assert stream.feed(ERROR.strip()) == []
    told = Broken("error_event")
    assert stream.feed_end() == [told, Lines(ERROR), End(b"", truncated=False)]


def test_a_stream_without_a_byte_is_a_break() -> None:
    assert StreamFraming().feed_end() == [Broken("empty_stream")]


def test_an_event_without_an_end_is_handed_out_with_the_end_of_the_stream() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
    stream = StreamFraming()
    assert stream.feed(usage) == []
    end = End(b"", truncated=False)
    assert stream.feed_end() == [Usage(3, 4, None), Lines(usage + b"\n\n"), end]


def test_an_over_long_event_is_handed_out_in_parts_and_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "LONGEST_EVENT_BYTES", 200)
    long = text_event("x" * 300).strip()
    # A part that looks like an event is none, because it is within one.
    said = long + b"data: " + text_event("y").strip() + b"\n\n" + text_event("z")
    fed, handed = StreamFraming(), b""
    for i in range(0, len(said), 16):
        for event in fed.feed(said[i : i + 16]):
            assert isinstance(event, Lines)
            handed += event.data
        assert i + 16 - len(handed) <= 200 + 16  # at most this much is held
    assert handed == said
    assert fed.feed_break("timeout") == [Broken("timeout")]
    cut = StreamFraming()
    cut.feed(long)
    assert cut.feed_break("timeout") == [Lines(b"\n\n"), Broken("timeout")]


def test_a_whole_answer_is_handed_out_at_its_end_only() -> None:
    for name, body in WHOLES.items():
        for cut in range(1, len(body)):
            whole = WholeFraming()
            assert whole.feed(body[:cut]) == []
            assert whole.feed(body[cut:]) == []
            usage, end = whole.feed_end()
            assert end == End(body, truncated=True), name
            assert isinstance(usage, Usage)
            assert usage.output_tokens == 6
            assert usage.prompt_tokens > 0


def test_a_whole_answer_that_breaks_off_has_given_nothing() -> None:
    whole = WholeFraming()
    assert whole.feed(b'{"choices":[{"text":"half') == []
    assert whole.feed_break("connection_lost") == [Broken("connection_lost")]


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"choices":[{"text":"ha', b"[]", b"null"])
def test_a_whole_answer_that_is_no_json_object_has_given_nothing(body: bytes) -> None:
    whole = WholeFraming()
    if body:
        whole.feed(body)
    assert whole.feed_end() == [Broken("not_json")]


@pytest.mark.parametrize("begin", [b"<html>\n", b"<html>", b"{}\n", b"data: {\n\n", b"data: no\n"])
def test_a_stream_that_begins_with_anything_else_than_an_event_has_given_nothing(
    begin: bytes,
) -> None:
    assert read([begin]).facts == [Broken("not_events")]
    assert read([begin[:3], begin[3:]]).out == b""


def test_a_whole_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "LONGEST_BODY_BYTES", 10)
    whole = WholeFraming()
    assert whole.feed(b"x" * 10) == []
    assert whole.feed(b"x") == [Broken("too_long")]
    assert whole.ended


@pytest.mark.parametrize(
    ("details", "cached"),
    [(None, None), ({}, None), ({"cached_tokens": 0}, 0), ({"cached_tokens": 16}, 16)],
)
def test_the_engine_may_say_what_was_cached(details: object, cached: int | None) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": details}
    assert usage_of(json.dumps({"usage": usage, "choices": []})) == Usage(3, 4, cached)


@pytest.mark.parametrize(
    "count", ["Infinity", "NaN", "-5", "1e400", '"x"', "[1]", "true", str(2**40)]
)
def test_impossible_counts_are_no_counts(count: str) -> None:
    assert usage_of(f'{{"usage": {{"completion_tokens": {count}}}}}') == Usage(0, 0, None)


NAMES = "usage", "choices", "prompt_tokens", "completion_tokens", "prompt_tokens_details"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NAMES, "delta", "token_ids", "finish_reason"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_nonsense_passes_and_leaves_counts_that_can_be_sent_on(answer: object) -> None:
    text = json.dumps(answer)
    usage = usage_of(text)
    if usage is not None:
        assert 0 <= usage.output_tokens < 2**31
        assert 0 <= usage.prompt_tokens < 2**31
        assert usage.cached_tokens is None or 0 <= usage.cached_tokens < 2**31
    event = b"data: " + text.encode() + b"\n\n"
    assert read([event]).out == event


def usage_of(body: str) -> Usage | None:
    """The usage in a whole answer with this body."""
    whole = WholeFraming()
    whole.feed(body.encode())
    *usage, _ = whole.feed_end()
    assert len(usage) <= 1
    return usage[0] if usage and isinstance(usage[0], Usage) else None


@pytest.mark.parametrize("framed", [StreamFraming, WholeFraming])
def test_after_its_end_nothing_may_be_fed(framed: type[StreamFraming | WholeFraming]) -> None:
    answer = framed()
    answer.feed(b": {}\n\n" if framed is StreamFraming else b"{}")
    answer.feed_end()
    with pytest.raises(AssertionError):
        answer.feed(b"x")
    with pytest.raises(AssertionError):
        answer.feed_end()
    with pytest.raises(AssertionError):
        answer.feed_break("timeout")


def test_a_long_whole_answer_is_handed_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "LONGEST_HELD_BYTES", 10)
    whole = WholeFraming()
    assert whole.feed(b' {"a": "1') == []
    assert whole.feed(b"234") == [Lines(b' {"a": "1234')]
    assert whole.feed(b'5"}') == [Lines(b'5"}')]
    assert whole.feed_end() == [End(b"", truncated=False)]
    broken = WholeFraming()
    assert broken.feed(b'{"a": "12345') != []
    assert broken.feed_break("connection_lost") == [Broken("connection_lost")]
    assert WholeFraming().feed(b"<html> of a proxy") == [Broken("not_json")]
