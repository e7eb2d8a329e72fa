"""The walks through the code in docs/structure.md are short, and each step exists."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = {"From the body of an HTTP request": 9, "From a predictor's message": 6}
_ROW = re.compile(r"^\| `([^`]+\.py)` \| `([^`]+)` \| (.*) \|$", re.MULTILINE)
_NAME = re.compile(r"`(\w+)`")


class Step(NamedTuple):
    file: str
    function: str
    calls: tuple[str, ...]


def steps_of(walk: str) -> list[Step]:
    """The rows of the table after the paragraph that begins with `walk`."""
    text = (ROOT / "docs" / "structure.md").read_text()
    table = text[text.index(walk) :].split("\n\n")[1]
    return [Step(f, n, tuple(_NAME.findall(calls))) for f, n, calls in _ROW.findall(table)]


def functions(path: str) -> set[str]:
    """The functions of a file; methods as `Class.method`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, kinds)}
    return found


def called(path: str) -> set[str]:
    """The last part of each name that a file calls."""
    calls = [n.func for n in ast.walk(ast.parse((ROOT / path).read_text())) if type(n) is ast.Call]
    return {str(getattr(each, "attr", getattr(each, "id", ""))) for each in calls}


@pytest.mark.parametrize(("walk", "most"), MOST_FILES.items())
def test_a_walk_is_short_and_each_step_exists(walk: str, most: int) -> None:
    steps = steps_of(walk)
    assert 2 < len({step.file for step in steps}) <= most
    for step in steps:
        assert step.function in functions(step.file), step
        assert called(step.file).issuperset(step.calls), step
