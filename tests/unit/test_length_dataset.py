"""Answered prompts read from JSON lines."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from foretell.length.conversation import KEPT_CHARACTERS, MOST_EXCHANGES, EarlierTurn
from foretell.tools.length.dataset import Example, read_examples


def read(folder: Path, *rows: dict[str, Any] | str, limit: int = 0) -> list[Example]:
    path = folder / "rows.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read_examples(path, limit=limit)


def turn(number: int, **fields: Any) -> dict[str, Any]:
    texts = {"prompt": f"p{number}", "response": f"answer {number}"}
    return {"conv": "c", "turn": number, **texts, "out_tok": 10 + number, **fields}


def test_a_row_with_everything(tmp_path: Path) -> None:
    (example,) = read(
        tmp_path,
        {
            "prompt": "Why?",
            "out_tok": 7,
            "model": "m",
            "in_tok": 20,
            "hist_tok": 100,
            "system": "Be brief.",
            "max_tokens": 50,
            "stop": ["a", "b"],
            "trunc": 1,
        },
    )
    assert (example.output_tokens, example.censored, example.model_name) == (7, True, "m")
    conversation = example.conversation
    assert (conversation.prompt, conversation.characters) == ("Why?", 4)
    assert conversation.prompt_tokens == 120
    assert conversation.system == "Be brief."
    assert (conversation.max_tokens, conversation.stops) == (50, 2)
    assert (conversation.earlier, conversation.exchanges) == ((), 0)


def test_the_least_row(tmp_path: Path) -> None:
    (example,) = read(tmp_path, {"prompt": "x" * 41, "out_tok": 3, "model": None})
    assert example.model_name == "default"
    assert not example.censored
    assert example.conversation.prompt_tokens == 11  # a quarter of the characters, rounded up


@pytest.mark.parametrize(
    ("fields", "censored"),
    [
        ({}, False),
        ({"trunc": 0}, False),
        ({"trunc": True}, True),
        ({"max_tokens": 6}, False),
        ({"max_tokens": 5}, True),
    ],
)
def test_an_answer_is_censored_if_marked_or_at_its_limit(
    tmp_path: Path, fields: dict[str, Any], censored: bool
) -> None:
    (example,) = read(tmp_path, {"prompt": "p", "out_tok": 5, **fields})
    assert example.censored == censored


def test_earlier_turns_are_exchanges_and_the_order_is_that_of_the_file(tmp_path: Path) -> None:
    rows = [turn(2), turn(0), {"prompt": "alone", "out_tok": 1}, turn(1)]
    examples = read(tmp_path, *rows)
    assert [example.conversation.prompt for example in examples] == ["p2", "p0", "alone", "p1"]
    first, second = EarlierTurn("p0", "answer 0", 8), EarlierTurn("p1", "answer 1", 8)
    assert [example.conversation.earlier for example in examples] == [
        (first, second),
        (),
        (),
        (first,),
    ]


def test_the_latest_exchanges_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    last = read(tmp_path, *(turn(number) for number in range(MOST_EXCHANGES + 3)))[-1]
    prompts = [exchange.prompt for exchange in last.conversation.earlier]
    assert prompts == [f"p{number}" for number in range(2, MOST_EXCHANGES + 2)]
    assert last.conversation.exchanges == MOST_EXCHANGES + 2


@pytest.mark.parametrize("other", [{"conv": "d"}, {"part": "b"}, {"model": "m"}])
def test_turns_of_another_conversation_part_or_model_are_not_earlier(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    examples = read(tmp_path, turn(0, **other), turn(1))
    assert examples[1].conversation.exchanges == 0


def test_texts_are_cut_and_counts_are_of_the_whole(tmp_path: Path) -> None:
    long = "a" * KEPT_CHARACTERS + "z" * KEPT_CHARACTERS
    row = turn(0, prompt=long, response=long, system=long)
    examples = read(tmp_path, row, turn(1))
    asked, (exchange,) = examples[0].conversation, examples[1].conversation.earlier
    cut = "a" * (KEPT_CHARACTERS // 2) + "z" * (KEPT_CHARACTERS // 2)
    assert (asked.prompt, asked.system, exchange.prompt, exchange.answer) == (cut,) * 4
    assert asked.characters == exchange.answer_characters == 2 * KEPT_CHARACTERS
    assert asked.prompt_tokens == KEPT_CHARACTERS  # a quarter of system and prompt
    assert examples[1].conversation.prompt_tokens == KEPT_CHARACTERS + 1  # earlier, and "p1"


def test_an_earlier_answer_without_text_is_as_long_as_its_tokens(tmp_path: Path) -> None:
    later = read(tmp_path, turn(0, response=None, out_tok=25), turn(1))[1]
    assert later.conversation.earlier == (EarlierTurn("p0", "", 100),)


def test_a_chat_says_its_history_itself(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    example = read(tmp_path, {"messages": messages, "out_tok": 9, "conv": "c", "turn": 1})[0]
    conversation = example.conversation
    assert (conversation.system, conversation.prompt) == ("Be kind.", "four")
    assert conversation.earlier == (EarlierTurn("one\ntwo", "three", 5),)
    # A quarter of 12 characters, and of the 11 before.
    assert conversation.prompt_tokens == 3 + 3


def test_gzip_limit_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    lines = [json.dumps({"prompt": "p", "out_tok": tokens}) for tokens in (1, 2, 3)]
    path.write_bytes(gzip.compress("\n\n".join(lines).encode()))
    assert [example.output_tokens for example in read_examples(path)] == [1, 2, 3]
    assert [example.output_tokens for example in read_examples(path, limit=2)] == [1, 2]


GOOD = {"prompt": "p", "out_tok": 1}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "Input should be an object"),
        ({"out_tok": 1}, "prompt: missing"),
        ({"prompt": "p"}, "out_tok: Field required"),
        ({"prompt": 5, "out_tok": 1}, "prompt: Input should be a valid string"),
        ({**GOOD, "out_tok": 0}, "out_tok: Input should be greater than or equal to 1"),
        ({**GOOD, "out_tok": "12"}, "out_tok: Input should be a valid integer"),
        ({**GOOD, "out_tok": True}, "out_tok: Input should be a valid integer"),
        ({**GOOD, "in_tok": -1}, "in_tok: Input should be greater than or equal to 0"),
        ({**GOOD, "trunc": 2}, "trunc: Input should be a valid boolean"),
        ({**GOOD, "stop": [1]}, "stop[0]: Input should be a valid string"),
        ({**GOOD, "conv": True}, "conv: Input should be a valid string"),
        ({**GOOD, "messages": []}, "messages: List should have at least 1 item"),
        ({**GOOD, "messages": [{"content": "x"}]}, "messages[0].role: Field required"),
        (
            {**GOOD, "messages": [{"role": "user", "content": 1}]},
            "messages[0].content: Input should be a valid string",
        ),
        (
            {**GOOD, "messages": [{"role": "assistant", "content": "x"}]},
            "messages: the last one must not be the assistant's",
        ),
        (
            {**GOOD, "messages": [{"role": "system", "content": "x"}]},
            "messages: none to be answered",
        ),
    ],
)
def test_errors_name_file_line_and_field(
    tmp_path: Path, row: dict[str, Any] | str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: ") as caught:
        read(tmp_path, GOOD, row)
    assert complaint in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.jsonl"):
        read_examples(tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match="no examples in it"):
        read(tmp_path, "")
    whole = gzip.compress(json.dumps(GOOD).encode())
    damaged = tmp_path / "damaged.jsonl.gz"
    for raw in (b"plain", whole[:-9], whole[:12] + b"\xff" * 9 + whole[21:]):
        damaged.write_bytes(raw)
        with pytest.raises(ValueError, match=r"damaged\.jsonl\.gz"):
            read_examples(damaged)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"prompt": "\xe9", "out_tok": 1}\n')
    with pytest.raises(ValueError, match=r"latin\.jsonl, line 1: .*utf-8"):
        read_examples(latin)


def test_pieces_of_a_conversation_follow_each_other_by_number(tmp_path: Path) -> None:
    rows = [turn(0, part="c_10"), turn(1, part="c_2"), turn(0, part="c_2")]
    last, middle, first = read(tmp_path, *rows)
    assert [e.conversation.exchanges for e in (first, middle, last)] == [0, 1, 2]
