"""What an engine must be able to do to serve a request, as far as that is known in advance.

No request is refused here: if no engine is known to be able to serve it, the most capable ones are
candidates, and the engine that gets it decides.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

Unfit = Literal["", "length", "model", "response", "image", "audio", "video"]
"""Why an engine says that it cannot serve a request that others may be able to serve."""
INPUTS = frozenset(("image", "audio", "video"))


class Capable(Protocol):
    """What matters here of an instance."""

    instance_id: str
    lengths: Mapping[str, int]
    """Longest context of each model in tokens, prompt and answer together, where it is known."""
    lacks: set[tuple[str, str]]
    """Pairs of a model and a kind of input that it has refused."""


_C = TypeVar("_C", bound=Capable)


class Need(NamedTuple):
    """What one request needs."""

    tokens: int = 0
    """Context length for its prompt and the longest answer that it allows."""
    least_tokens: int = 0
    """Context length for its prompt and the first token of its answer."""
    inputs: frozenset[str] = frozenset()
    """Kinds of inputs other than text, from `INPUTS`."""
    keeper: str = ""
    """The instance that keeps the response it refers to; "": it refers to none, or unknown."""

    def fitting(self, model: str, known: Sequence[_C]) -> list[_C]:
        """Return those that can serve a request to `model`; if none can, the most capable."""
        able = [each for each in known if not self.lacking(model, each)] or list(known)
        for tokens in (self.tokens, self.least_tokens):
            fits = [each for each in able if each.lengths.get(model, tokens) >= tokens]
            if fits:
                return fits
        longest = max((each.lengths.get(model, 0) for each in able), default=0)
        return [each for each in able if each.lengths.get(model, 0) == longest]

    def lacking(self, model: str, instance: Capable) -> bool:
        """Whether the instance has refused inputs of these kinds."""
        return any((model, kind) in instance.lacks for kind in self.inputs)


MOST_REFUSALS = 32
"""The number of engines that may say that they cannot serve a request before it is refused."""
ANY = Need()
"""A need that every engine fulfils."""


def differ(model: str, known: Collection[Capable]) -> bool:
    """Whether the instances that serve `model` differ in what requests they can serve."""
    lengths = {each.lengths.get(model) for each in known}
    return len(lengths) > 1 or any(each.lacks for each in known)
