"""Turns conversations into the inputs of a length model: token ids, segments and features."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from foretell.length.bins import EDGES
from foretell.length.conversation import Conversation
from foretell.length.features import NAMES, features
from foretell.length.window import Marks, ReadWindow, compose

FORMAT = 1
DESCRIPTION, WEIGHTS, TOKENIZER = "tagger.json", "model.onnx", "tokenizer.json"

_MARKS = (("[CLS]", "[SEP]", "[PAD]"), ("<s>", "</s>", "<pad>"))
_LEAST_SPREAD = 1e-6
_MOST_CHARACTERS = 16
"""Assumed most characters of a token; most tokens have 4. Long texts are cut by it before they are
tokenized, because tokenizing all of one takes longer than reading its ends."""


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """n conversations, padded to the longest."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    mask: NDArray[np.int64]
    features: NDArray[np.float32]
    models: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Description:
    """What belongs to a model's weights, as stored in `tagger.json`."""

    window: ReadWindow
    marks: Marks
    models: tuple[str, ...]
    """Serving models seen in training, numbered from 1; any other is number 0."""
    feature_mean: tuple[float, ...]
    feature_scale: tuple[float, ...]
    """Factors for each feature's distance from its mean; 0: it never varied."""
    temperature: float = 1.0
    """Divisor of the logits."""

    def write(self, folder: Path) -> None:
        text = {"format": FORMAT, "features": NAMES, "edges": EDGES.tolist(), **asdict(self)}
        (folder / DESCRIPTION).write_text(json.dumps(text, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Read the description; ValueError unless it is of a model of this version."""
        found: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text())
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ValueError(f"{DESCRIPTION}: not of format {FORMAT}")
        try:
            if tuple(found.pop("features")) != NAMES or found.pop("edges") != EDGES.tolist():
                raise ValueError(
                    f"{DESCRIPTION}: trained with other features or bins; train it anew"
                )
            window = ReadWindow(**{name: tuple(ends) for name, ends in found.pop("window").items()})
            marks = Marks(**found.pop("marks"))
            for name in ("models", "feature_mean", "feature_scale"):
                found[name] = tuple(found[name])
            return cls(window, marks, **found)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{DESCRIPTION}: not a description: {error!r}") from error


def marks_of(tokenizer: Tokenizer) -> Marks:
    """Return BERT's or RoBERTa's special tokens; ValueError for a tokenizer with neither."""
    for names in _MARKS:
        found = [tokenizer.token_to_id(name) for name in names]
        known = [number for number in found if number is not None]
        if len(known) == len(names):
            return Marks(*known)
    raise ValueError("the tokenizer has neither [CLS], [SEP], [PAD] nor <s>, </s>, <pad>")


def scales_of(rows: NDArray[np.float32]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and scale of each feature, `rows` being (n, features)."""
    spread = rows.std(axis=0)
    scale = np.where(spread > _LEAST_SPREAD, 1.0 / np.maximum(spread, _LEAST_SPREAD), 0.0)
    return tuple(rows.mean(axis=0).tolist()), tuple(scale.tolist())


def feature_rows(conversations: Sequence[Conversation]) -> NDArray[np.float32]:
    """Features, (n, features), not standardised."""
    rows = [features(conversation) for conversation in conversations]
    return np.array(rows, np.float32).reshape(len(rows), len(NAMES))


class PromptReader:
    """Makes `EncoderInputs`; not thread-safe."""

    def __init__(self, description: Description, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.description = description
        self._tokenizer = tokenizer
        self._mean = np.array(description.feature_mean, np.float32)
        self._scale = np.array(description.feature_scale, np.float32)
        self._numbers = {name: i + 1 for i, name in enumerate(description.models)}

    def sequences(self, conversations: Sequence[Conversation]) -> list[tuple[list[int], list[int]]]:
        """Token ids and segments of each conversation."""
        window, marks = self.description.window, self.description.marks
        latest = [c.earlier[-1] if c.earlier else None for c in conversations]
        prompts = self.tokens([_ends(c.prompt, window.prompt) for c in conversations])
        asked = self.tokens([_ends(e.prompt, window.asked) if e else "" for e in latest])
        answered = self.tokens([_ends(e.answer, window.answered) if e else "" for e in latest])
        return [
            compose(*texts, window, marks) for texts in zip(prompts, asked, answered, strict=True)
        ]

    def features(self, conversations: Sequence[Conversation]) -> NDArray[np.float32]:
        """(n, features), standardised."""
        rows = feature_rows(conversations)
        return ((rows - self._mean) * self._scale).clip(-8.0, 8.0)

    def models(self, names: Sequence[str]) -> NDArray[np.int64]:
        """(n,): the number of each serving model."""
        return np.array([self._numbers.get(name, 0) for name in names], np.int64)

    def read(self, conversations: Sequence[Conversation], models: Sequence[str]) -> EncoderInputs:
        """Return all inputs of a model."""
        return padded(
            self.sequences(conversations),
            self.features(conversations),
            self.models(models),
            self.description.marks.pad,
        )

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Ids of all the tokens of each text."""
        # One call for all texts, which releases the interpreter's lock.
        found = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]


def _ends(text: str, most: tuple[int, int]) -> str:
    """Cut `text` to ends long enough for the first and last tokens, as many as `most` says."""
    head, tail = (_MOST_CHARACTERS * tokens for tokens in most)
    if len(text) <= head + tail:
        return text
    return f"{text[:head]} {text[len(text) - tail :]}"


def padded(
    sequences: Sequence[tuple[list[int], list[int]]],
    rows: NDArray[np.float32],
    models: NDArray[np.int64],
    pad: int,
) -> EncoderInputs:
    """`sequences` as arrays of equal length."""
    shape = (len(sequences), max(len(ids) for ids, _ in sequences))
    ids, segments, mask = np.full(shape, pad), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for i, (tokens, parts) in enumerate(sequences):
        ids[i, : len(tokens)] = tokens
        segments[i, : len(tokens)] = parts
        mask[i, : len(tokens)] = 1
    return EncoderInputs(ids, segments, mask, rows, models)
