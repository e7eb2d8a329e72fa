"""The small length model: its inputs, its outputs, and which files it refuses."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length.bins import BINS, quantiles
from foretell.length.conversation import Conversation, EarlierTurn
from foretell.length.features import NAMES, QUICK_NAMES, features, quick_features
from foretell.length.small import SMALL, SmallModel, Weights, shipped
from foretell.length.words import BUCKETS, word_numbers

texts = st.text(max_size=80)


def conversation(prompt: str, *exchanges: tuple[str, str]) -> Conversation:
    earlier = tuple(EarlierTurn(asked, answer, len(answer)) for asked, answer in exchanges)
    return Conversation(prompt, len(prompt), 100, earlier=earlier, exchanges=len(earlier))


@pytest.fixture(scope="module")
def small() -> SmallModel:
    return SmallModel(Weights.read(shipped()))


@given(texts, st.lists(st.tuples(texts, texts), max_size=4))
def test_quick_features_are_those_of_the_large_model(
    prompt: str, exchanges: list[tuple[str, str]]
) -> None:
    said = conversation(prompt, *exchanges)
    every = dict(zip(NAMES, features(said), strict=True))
    quick = dict(zip(QUICK_NAMES, quick_features(said), strict=True))
    assert quick == pytest.approx({name: every[name] for name in QUICK_NAMES})


@given(texts, st.lists(st.tuples(texts, texts), max_size=2))
def test_word_numbers_are_bounded(prompt: str, exchanges: list[tuple[str, str]]) -> None:
    numbers = word_numbers(conversation(prompt * 50, *exchanges))
    assert 0 < len(numbers) < 128
    assert all(0 <= number < BUCKETS for number in numbers)


def test_word_numbers_stay_the_same() -> None:
    """A trained model identifies words by these numbers."""
    assert word_numbers(conversation("Is it so?", ("Why?", "No."))) == [
        *(0, 5078, 1653, 8057, 7097, 870),
        *(529, 6445, 4890),
    ]


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_each_row_is_a_distribution_and_its_own(asked: list[tuple[str, str]]) -> None:
    small = SmallModel(Weights.read(shipped()))
    said = [conversation(prompt, (prompt, answer)) for prompt, answer in asked]
    together, seen = small.read(said, [""] * len(said))
    assert together.shape == (len(said), BINS)
    assert seen.shape == (len(said), len(QUICK_NAMES))
    assert np.allclose(together.sum(axis=1), 1.0)
    for row, one in zip(together, said, strict=True):
        assert np.allclose(small.read([one], [""])[0][0], row, atol=1e-5)


def test_what_is_asked_for_tells_how_long_the_answer_will_be(small: SmallModel) -> None:
    short = "Who wrote Hamlet?"
    essay = "Write a detailed essay of 1000 words on the history of the printing press."
    found = quantiles(small.read([conversation(short), conversation(essay)], ["", ""])[0])
    assert found[0, 3] < 120
    assert found[1, 3] > 300


def test_another_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=SMALL):
        Weights.read(tmp_path)
    for content in (b"", b"no weights", (shipped() / SMALL).read_bytes()[:9000]):
        (tmp_path / SMALL).write_bytes(content)
        with pytest.raises((ValueError, OSError)):
            Weights.read(tmp_path)
    with (shipped() / SMALL).open("rb") as file, np.load(file) as found:
        arrays = dict(found)
    for name, wrong in (("format", 99), ("features", np.array(["x"])), ("last", np.zeros((3, 3)))):
        np.savez(tmp_path / SMALL, **{**arrays, name: wrong})
        with pytest.raises(ValueError, match=SMALL):
            Weights.read(tmp_path)
