"""Events that are read without parsing JSON give the same results as parsed ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.answer.choice import Alike, Choice, alike
from foretell.answer.continuation import Progress
from foretell.answer.framing import Event, Lines
from foretell.answer.stream import StreamFraming

TEXTS = st.one_of(
    st.sampled_from(
        [" the", "", '"', "\\", '"},"token_ids":[7]', "]}]}", "a\\", "\n", "é", "\u2028"]
    ),
    st.text(max_size=6),
)
IDS = st.lists(st.integers(0, 200_000), max_size=3)
EXTRAS = st.sampled_from(
    [{}, {}, {}, {"finish_reason": "stop"}, {"stop_reason": 5}, {"token_ids": None}, {"index": 1}]
)
DELTAS = st.sampled_from(
    [{}, {}, {}, {"role": "assistant"}, {"reasoning": " so"}, {"tool_calls": []}]
)
TOPS = st.sampled_from([{}, {}, {}, {"usage": {"prompt_tokens": 3}}, {"created": 2}])


def chat(text: str, ids: list[int], extra: Any, delta: Any, top: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text, **delta}, "logprobs": None}
    choice |= {"finish_reason": None, "token_ids": ids, **extra}
    return {"id": "a", "created": 1, "model": '"content":" the"', "choices": [choice], **top}


def completion(text: str, ids: list[int], extra: Any, _: Any, top: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    choice |= {"stop_reason": None, "token_ids": ids, "prompt_token_ids": None, **extra}
    return {"id": "a", "created": 1, "choices": [choice], **top}


def line_of(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    return b"data: %b\n\n" % text.encode("utf-8", "replace")


def parsed(stream: list[bytes], *, with_ids: bool) -> tuple[Progress, list[Event]]:
    """Read a stream as if no event looked like the one before."""
    progress = Progress(with_ids=with_ids)
    framing = StreamFraming(progress)
    events: list[Event] = []
    for line in stream:
        progress.alike = None
        events += framing.feed(line)
    return progress, events + framing.feed_break("lost")


def in_one(events: list[Event]) -> list[Event]:
    """The same events, with all lines for the client in one piece."""
    lines = b"".join(each.data for each in events if isinstance(each, Lines))
    return [Lines(lines), *(each for each in events if not isinstance(each, Lines))]


def states(progress: Progress) -> dict[str, Any]:
    """What is known about the choice, independent of how it was read."""
    return vars(progress._choices[0])


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("form", [chat, completion])
@given(
    st.lists(st.tuples(TEXTS, IDS, EXTRAS, DELTAS, TOPS), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_a_stream_is_read_as_by_a_parser(
    with_ids: bool, form: Any, told: list[Any], together: int
) -> None:
    stream = [line_of(form(*each)) for each in told]
    progress = Progress(with_ids=with_ids)
    framing = StreamFraming(progress)
    events: list[Event] = []
    for at in range(0, len(stream), together):
        data = b"".join(stream[at : at + together])
        passed_on = framing.pass_on(data)
        events += framing.feed(data) if passed_on is None else [Lines(passed_on)]
    events += framing.feed_break("lost")
    slow, wanted = parsed(stream, with_ids=with_ids)
    assert in_one(events) == in_one(wanted)
    assert progress.output_ids == slow.output_ids
    assert states(progress) == states(slow)
    assert progress.can_go_on == slow.can_go_on


def learnt(line: bytes) -> Alike:
    found = alike(line, Choice(), {}, {"content": " the"}, ids_shown=False)
    assert found is not None
    return found


@pytest.mark.parametrize("with_ids", [False, True])
def test_the_events_of_a_stream_are_alike_from_the_second_on(with_ids: bool) -> None:
    first, *others = (line_of(chat(f" w{number}", [number], {}, {}, {})) for number in range(9))
    progress = Progress(with_ids=with_ids)
    StreamFraming(progress).feed(first)
    for number, line in enumerate(others, 1):
        assert progress.alike is not None
        shown = progress.alike.take(line)
        assert shown == (line if with_ids else line.replace(b"[%d]" % number, b"null"))
    assert progress.output_ids == [list(range(9))]


def test_an_engine_that_goes_on_is_read_by_a_parser() -> None:
    stream = [line_of(chat(f" w{number}", [number], {}, {}, {})) for number in range(4)]
    progress = Progress(with_ids=True)
    for line in stream[:2]:
        StreamFraming(progress).feed(line)
    progress.begin_again()
    again = StreamFraming(progress)
    shown = in_one([event for line in stream for event in again.feed(line)])
    assert shown == [Lines(b"".join(stream[2:]))]
    assert progress.alike is None


def test_events_of_another_model_are_not_alike() -> None:
    event = chat(" the", [1], {}, {}, {})
    assert learnt(line_of(event)).take(line_of(event | {"model": "another"})) is None


@pytest.mark.parametrize("ids", [b"", b"1,,2", b"1.5", b'"1"', b"[1]", b"null"])
def test_what_are_no_ids_is_left_to_a_parser(ids: bytes) -> None:
    line = line_of(chat(" the", [1], {}, {}, {}))
    assert learnt(line).take(line.replace(b'"token_ids":[1]', b'"token_ids":[%b]' % ids)) is None
