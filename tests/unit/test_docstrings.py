"""Docstrings say what a thing is, in words that need nothing before them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("foretell", "services", "cli", "tools", "bench")
_ELLIPTIC = re.compile(r"(?:Of|As|The same)\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring in `source`, those of attributes included."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    yield line, text


def elliptic(source: str) -> list[tuple[int, str]]:
    """Docstrings that lean on the name before them, such as "Of the request."."""
    found = ((line, text.split("\n")[0]) for line, text in docstrings(source))
    return [(line, text) for line, text in found if _ELLIPTIC.match(text)]


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_are_whole_sentences(room: str) -> None:
    files = [path for path in (ROOT / room).rglob("*.py") if "v1" not in path.parts]
    assert files
    found = {str(path.relative_to(ROOT)): elliptic(path.read_text()) for path in files}
    assert not {path: lines for path, lines in found.items() if lines}


def test_an_elliptic_docstring_is_noticed() -> None:
    source = (
        'A = 1\n"""Of a request."""\n\n\ndef f():\n    """The same."""\n\n\nB = 2\n"""Often."""\n'
    )
    assert sorted(elliptic(source)) == [(2, "Of a request."), (6, "The same.")]
