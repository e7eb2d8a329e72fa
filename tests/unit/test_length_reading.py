"""From a conversation to the inputs of a length model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from foretell.length.conversation import Conversation, EarlierTurn, head_and_tail
from foretell.length.features import NAMES, features
from foretell.length.window import Marks, ReadWindow, compose
from foretell.services.tagger.encoder import OnnxEncoder
from foretell.services.tagger.reading import (
    DESCRIPTION,
    TOKENIZER,
    WEIGHTS,
    Description,
    PromptReader,
    feature_rows,
    marks_of,
    padded,
    scales_of,
)

MARKS = Marks(begin=100, end=101, pad=0)
WINDOW = ReadWindow(prompt=(3, 2), asked=(1, 1), answered=(1, 2))
ASKED = Conversation("Write 20 words about tea, please?", 33, 9)
CHAT = replace(
    ASKED,
    earlier=(EarlierTurn("one", "tea tea", 7), EarlierTurn("two", "x" * 99, 9_999)),
    exchanges=6,
)


def tokenizer(*special: str) -> Tokenizer:
    words = [*special, "<unk>", "Write", "words", "about", "tea"]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def test_head_and_tail_of_every_text_are_seen() -> None:
    ids, segments = compose(list(range(10)), [20, 21, 22], [30, 31, 32, 33], WINDOW, MARKS)
    assert ids == [100, 0, 1, 2, 8, 9, 101, 20, 22, 101, 30, 32, 33, 101]
    assert segments == [0] * 7 + [1] * 7
    assert len(ids) == WINDOW.tokens


def test_without_a_conversation_there_is_one_segment() -> None:
    assert compose([1, 2], [], [], WINDOW, MARKS) == ([100, 1, 2, 101], [0] * 4)


def test_short_texts_are_whole_and_long_ones_keep_both_ends() -> None:
    assert head_and_tail("abc", 3) == "abc"
    assert head_and_tail("abcdefg", 4) == "abfg"


def test_features_are_finite_and_named() -> None:
    for conversation in (ASKED, CHAT, Conversation("", 0, 1)):
        row = features(conversation)
        assert len(row) == len(NAMES)
        assert np.isfinite(row).all()
    seen = dict(zip(NAMES, features(CHAT), strict=True))
    assert seen["ends_with_question"] == seen["says write"] == 1.0
    assert seen["log_asked_words"] + seen["log_asked_items"] == pytest.approx(np.log(21))
    assert seen["log_answer_1"] == pytest.approx(np.log1p(9_999 / 4))  # of the whole answer
    assert seen["log_answer_2"] == pytest.approx(np.log1p(7 / 4))
    assert seen["log_answer_3"] == 0.0


def test_a_feature_that_never_varied_says_nothing() -> None:
    rows = feature_rows([ASKED, CHAT])
    mean, scale = scales_of(rows)
    made = Description(WINDOW, MARKS, ("m",), mean, scale)
    reader = PromptReader(made, tokenizer("[CLS]", "[SEP]", "[PAD]"))
    limited = replace(CHAT, max_tokens=500, stops=3)
    assert (reader.features([limited]) == reader.features([CHAT])).all()
    assert reader.features([ASKED, CHAT]).mean(axis=0) == pytest.approx(0.0, abs=1e-5)


def test_marks_are_berts_or_robertas() -> None:
    assert marks_of(tokenizer("[PAD]", "[CLS]", "[SEP]")) == Marks(begin=1, end=2, pad=0)
    assert marks_of(tokenizer("<s>", "<pad>", "</s>")) == Marks(begin=0, end=2, pad=1)
    with pytest.raises(ValueError, match="neither"):
        marks_of(tokenizer("<s>"))


def test_sequences_are_padded_to_the_longest() -> None:
    inputs = padded(
        [([7], [0]), ([8, 9], [0, 1])], np.zeros((2, 1), np.float32), np.array([1, 0]), pad=5
    )
    assert inputs.ids.tolist() == [[7, 5], [8, 9]]
    assert inputs.segments.tolist() == [[0, 0], [0, 1]]
    assert inputs.mask.tolist() == [[1, 0], [1, 1]]


def test_an_unknown_serving_model_is_number_zero() -> None:
    width = len(NAMES)
    made = Description(WINDOW, MARKS, ("a", "b"), (0.0,) * width, (1.0,) * width)
    reader = PromptReader(made, tokenizer("[CLS]", "[SEP]", "[PAD]"))
    assert reader.models(["b", "other", "a"]).tolist() == [2, 0, 1]


def test_a_description_is_read_as_it_was_written(tmp_path: Path) -> None:
    width = len(NAMES)
    made = Description(WINDOW, MARKS, ("a",), (0.5,) * width, (2.0,) * width, temperature=1.1)
    made.write(tmp_path)
    assert Description.read(tmp_path) == made
    text = json.loads((tmp_path / DESCRIPTION).read_text())
    text["features"][0] = "something else"
    (tmp_path / DESCRIPTION).write_text(json.dumps(text))
    with pytest.raises(ValueError, match="other features or bins"):
        Description.read(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", '{"format": 1}', '{"format": 1, "features": 3}'])
def test_what_is_no_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / DESCRIPTION).write_text(text)
    with pytest.raises(ValueError, match=r"description|format|JSON|property name"):
        Description.read(tmp_path)


@pytest.mark.parametrize("broken", [TOKENIZER, WEIGHTS])
def test_a_broken_file_is_named_by_its_folder(tmp_path: Path, broken: str) -> None:
    width = len(NAMES)
    Description(WINDOW, MARKS, ("a",), (0.0,) * width, (1.0,) * width).write(tmp_path)
    tokenizer("[CLS]", "[SEP]", "[PAD]").save(str(tmp_path / TOKENIZER))
    with pytest.raises(ValueError, match=f"{WEIGHTS} does not exist"):
        OnnxEncoder(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"no weights")
    (tmp_path / broken).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=tmp_path.name):
        OnnxEncoder(tmp_path)


def test_a_window_of_fewer_than_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        ReadWindow(prompt=(3, -1))
