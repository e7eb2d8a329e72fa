"""What a vector is: bytes, who sends them, what must happen, and where it comes from.

Rows are in files of their own, `rows_*.py`, each with a `VECTORS`; `test_attacks.py` runs all that
it finds there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from world import World


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a client sends over one connection, and the statuses that it must get for it."""

    name: str
    source: str
    sent: tuple[bytes, ...]
    """Parts, with a pause after each."""
    statuses: tuple[int, ...]
    """Those of the answers, in their order."""
    kept: bool = False
    """The connection must stay open after them; otherwise it must be closed."""
    half_closed: bool = False
    """The client sends no more, and says so."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine sends as its answer, and what its client must get."""

    name: str
    source: str
    sent: tuple[bytes, ...]
    statuses: tuple[int, ...]
    """Any of these, or 0: the connection was closed without one."""
    stream: bool = False
    then_closes: bool = False
    """The engine closes the connection after that."""
    body: bytes | None = None
    """The body that the client must get."""
    never: tuple[bytes, ...] = ()
    """What neither this client may get nor the next one."""
    reused: bool | None = None
    """Whether the next request may come over the same connection; None: either."""


@dataclass(frozen=True, slots=True)
class Script:
    """What takes more than one connection: `run` does it, and asserts what must happen."""

    name: str
    source: str
    run: Callable[["World"], Any]
    world: str = "world"
    """The fixture that makes it."""
    most_mib: float = 50.0
    """That much more memory, at its peak."""


Vector = Bytes | Answer | Script


def named(kind: str, cases: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The cases of a kind, by names that are theirs alone."""
    for name, case in cases.items():
        yield f"{kind}: {name}", case


def shown(data: bytes) -> str:
    """Bytes as a name."""
    return repr(data)[2:-1].replace("\\x", "%").replace("::", ":")[:40] or "nothing"
