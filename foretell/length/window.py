"""What a model reads of a conversation: the head and the tail of each text, as tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

Ids = list[int]


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """The most tokens of the head and of the tail of each text; part of a trained model."""

    prompt: tuple[int, int] = (64, 32)
    asked: tuple[int, int] = (20, 6)
    """The latest earlier prompt of the conversation."""
    answered: tuple[int, int] = (10, 16)
    """The answer to that prompt."""

    def __post_init__(self) -> None:
        if min(*self.prompt, *self.asked, *self.answered) < 0:
            raise ValueError("window: tokens must not be negative")

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence, with the marks around the texts."""
        return sum(self.prompt) + sum(self.asked) + sum(self.answered) + 4


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids that a model's tokenizer puts around texts."""

    begin: int
    end: int
    pad: int


def compose(
    prompt: Ids, asked: Ids, answered: Ids, window: ReadWindow, marks: Marks
) -> tuple[Ids, Ids]:
    """Token ids and their segments: 0 for the prompt, 1 for what came before it.

    BERT's form for a pair of texts; a model without segments ignores them.
    """
    own = [marks.begin, *_cut(prompt, window.prompt), marks.end]
    before: Ids = []
    if asked or answered:
        before = [*_cut(asked, window.asked), marks.end]
        before += [*_cut(answered, window.answered), marks.end]
    return own + before, [0] * len(own) + [1] * len(before)


def _cut(ids: Sequence[int], most: tuple[int, int]) -> Ids:
    head, tail = most
    if len(ids) <= head + tail:
        return list(ids)
    return [*ids[:head], *ids[len(ids) - tail :]]
