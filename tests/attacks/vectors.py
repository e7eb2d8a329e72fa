"""The kinds of vectors: what is sent, by whom, what must happen, and the source of the attack.

The vectors are in the files `rows_*.py`, each with a list `VECTORS`; `test_attacks.py` runs all of
them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from world import World


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes that a client sends over one connection, and the statuses that it must get."""

    name: str
    source: str
    sent: tuple[bytes, ...]
    """Parts, with a pause after each if there are fewer than ten."""
    statuses: tuple[int, ...]
    """The statuses of the answers, in order."""
    kept: bool = False
    """Whether the connection must stay open after them; otherwise it must be closed."""
    half_closed: bool = False
    """Whether the client closes its sending side."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes that an engine answers, and what the client must get."""

    name: str
    source: str
    sent: tuple[bytes, ...]
    statuses: tuple[int, ...]
    """The status must be one of these; 0: closed without a status."""
    stream: bool = False
    then_closes: bool = False
    """Whether the engine closes the connection after its answer."""
    body: bytes | None = None
    """The body that the client must get."""
    never: tuple[bytes, ...] = ()
    """Bytes that neither this client nor the next one may get."""
    reused: bool | None = None
    """Whether the next request must come over the same connection; None: either."""


@dataclass(frozen=True, slots=True)
class Script:
    """A vector that needs more than one connection; `run` performs it and asserts the outcome."""

    name: str
    source: str
    run: Callable[["World"], Any]
    world: str = "world"
    """The name of the fixture that makes its world."""
    most_mib: float = 50.0
    """The most growth of peak memory."""


Vector = Bytes | Answer | Script


def named(kind: str, cases: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The cases of a kind, with the kind in their names to make them unique."""
    for name, case in cases.items():
        yield f"{kind}: {name}", case


def shown(data: bytes) -> str:
    """Bytes as readable text for a name."""
    return repr(data)[2:-1].replace("\\x", "%").replace("::", ":")[:40] or "nothing"
