"""Reading files of requests, and the order in which they are done soonest."""

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from foretell.config import load_profile
from foretell.offline.requests import Line, requests_of
from foretell.offline.tree import Prompt
from foretell.sim.orders import judged

PROFILE = "H100/Llama-3.1-8B"


def chat(text: str, system: str = "", **limits: int | bool) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {"model": "m", "messages": messages, **limits}


def write(path: Path, bodies: list[dict[str, object]]) -> Path:
    lines = [json.dumps({"custom_id": str(i), "body": body}) for i, body in enumerate(bodies)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_lines(path: Path) -> Iterator[tuple[Line, Prompt]]:
    with path.open("rb") as file:
        yield from requests_of(file)


def test_lines_are_chats_completions_and_tokens(tmp_path: Path) -> None:
    bodies = [
        chat("Hello", "Be brief.", max_tokens=9, ignore_eos=True),
        {"prompt": "Hello there"},
        {"prompt": [5, 6, 7], "max_tokens": 4, "min_tokens": 4},
        chat("Hello", max_tokens=9),
    ]
    read = list(read_lines(write(tmp_path / "in.jsonl", bodies)))
    lines = [line for line, _ in read]
    assert [line.known_tokens for line in lines] == [9, 0, 4, 0]
    assert list(read[2][1]) == [5, 6, 7]
    assert lines[0].conversation.system == "Be brief."
    assert lines[3].conversation.max_tokens == 9


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"prompt": [100000000000000000000]}',
        '{"body": {}}',
        '{"body": {"messages": 3}}',
    ],
)
def test_what_is_no_request_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{text}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_lines(path))


def test_the_order_that_is_done_soonest(tmp_path: Path) -> None:
    draws = random.Random(1)
    shared = "Answer each question with one letter and nothing else. " * 20
    bodies = [chat(f"Is {draws.random()} even?", shared, max_tokens=2) for _ in range(60)]
    bodies += [chat(f"Tell of {i}", max_tokens=300, ignore_eos=True) for i in range(20)]
    read = partial(read_lines, write(tmp_path / "in.jsonl", bodies))
    judgement = judged(read, load_profile(PROFILE))
    assert sorted(line.number for line in judgement.soonest) == list(range(1, 81))
    assert 0.5 < judgement.found["sharing_ratio"] < 1.0
    assert judgement.found["speed_up_over_fcfs"] >= 1.0
    again = judged(read, load_profile(PROFILE))
    assert (again.order, again.found) == (judgement.order, judgement.found)


def test_lengths_are_learnt_from_answers_of_requests_that_begin_alike(tmp_path: Path) -> None:
    texts = [f"On text {text}: " + f"w{text} " * 100 for text in range(2)]
    bodies = [chat(f"why {number}?", texts[number % 2]) for number in range(200)]
    path = write(tmp_path / "in.jsonl", bodies)
    left, answers = range(41, 201), {line: (7, 1900)[line % 2] for line in range(1, 41)}
    found = judged(partial(read_lines, path), load_profile(PROFILE), left, answers)
    assert sorted(line.number for line in found.soonest) == list(left)
    assert found.found["expected_output_tokens"] == 80 * 7 + 80 * 1900
    before = judged(partial(read_lines, path), load_profile(PROFILE), left)
    assert before.found["expected_output_tokens"] != found.found["expected_output_tokens"]


def test_responses_are_read(tmp_path: Path) -> None:
    bodies: list[dict[str, object]] = [
        {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 9},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]},
    ]
    (one, _), (other, _) = read_lines(write(tmp_path / "in.jsonl", bodies))
    assert one.conversation.system == "Be brief."
    assert one.conversation.max_tokens == 9
    assert other.conversation.prompt == one.conversation.prompt == "Hello"


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no requests"):
        judged(partial(read_lines, write(tmp_path / "in.jsonl", [])), load_profile(PROFILE))
