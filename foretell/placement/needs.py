"""What an engine must be able to do to serve a request, as far as that is known before it is sent.

Nothing is refused here: where no engine is known to be able to, the most capable ones are
candidates, and the engine that gets the request judges it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

Unfit = Literal["", "length", "model", "response", "image", "audio", "video"]
"""Why an engine says that it cannot serve a request that others may serve."""
INPUTS = frozenset(("image", "audio", "video"))


class Capable(Protocol):
    """An instance, as far as it matters here."""

    instance_id: str
    lengths: Mapping[str, int]
    """Longest context of each model in tokens, prompt and answer together; where it is known."""
    lacks: set[tuple[str, str]]
    """Models and the kinds of inputs that it has refused for them."""


_C = TypeVar("_C", bound=Capable)


class Need(NamedTuple):
    """What one request needs."""

    tokens: int = 0
    """Context for its prompt and the longest answer that it allows."""
    least_tokens: int = 0
    """Context for its prompt and the first token of its answer."""
    inputs: frozenset[str] = frozenset()
    """Kinds of inputs beside text, of `INPUTS`."""
    keeper: str = ""
    """The instance that keeps what it refers to; "": it refers to nothing, or nobody knows."""

    def fitting(self, model: str, known: Sequence[_C]) -> list[_C]:
        """Those that can serve a request to `model`; the most capable if none is known to."""
        able = [each for each in known if not self.lacking(model, each)] or list(known)
        for tokens in (self.tokens, self.least_tokens):
            fits = [each for each in able if each.lengths.get(model, tokens) >= tokens]
            if fits:
                return fits
        longest = max((each.lengths.get(model, 0) for each in able), default=0)
        return [each for each in able if each.lengths.get(model, 0) == longest]

    def lacking(self, model: str, instance: Capable) -> bool:
        """Whether the instance has refused such inputs."""
        return any((model, kind) in instance.lacks for kind in self.inputs)


MOST_REFUSALS = 32
"""Engines that are asked for one request and say that they cannot serve it."""
ANY = Need()
"""What every engine can do."""


def differ(model: str, known: Collection[Capable]) -> bool:
    """Whether it matters which of the instances that serve `model` gets a request."""
    lengths = {each.lengths.get(model) for each in known}
    return len(lengths) > 1 or any(each.lacks for each in known)
