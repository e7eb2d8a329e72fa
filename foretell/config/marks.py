"""YAML whose mistakes are reported with file, line, column and field."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_NEAR = 0.6  # ratio of equal characters
Location = Sequence[str | int]
"""Names of fields and indices of list items, from the outside in, as pydantic tells them."""


class ClusterError(ValueError):
    """What is wrong with a cluster: one line for each mistake."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file that remembers where everything stands in it."""

    source: str
    data: dict[str, Any]
    root: Node

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> str:
        """`cluster.yaml, line 3, column 5: engines[0].kind: MESSAGE`."""
        mark = _find(self.root, location, at_key=at_key).start_mark
        place = f"{self.source}, line {mark.line + 1}, column {mark.column + 1}"
        field = field_name(location)
        return f"{place}: {field}: {message}" if field else f"{place}: {message}"


def parse(text: str, source: str) -> Document:
    """The mapping that `text` holds; ClusterError unless it is one, in YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ClusterError(f"{source}{place}: no valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ClusterError(f"{source}: no valid YAML: {error}") from error
    if not isinstance(root, MappingNode):
        raise ClusterError(f"{source}: must hold sections such as `engines:`")
    document = Document(source, data, root)
    if repeated := list(_repeated_keys(root)):
        raise ClusterError(
            "\n".join(
                f"{source}, line {key.start_mark.line + 1}, column {key.start_mark.column + 1}: "
                f"{key.value}: is given twice"
                for key in repeated
            )
        )
    return document


def field_name(location: Location) -> str:
    """`engines[0].kind`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def plain(message: str) -> str:
    """A message of pydantic without its prefix."""
    return message.removeprefix("Value error, ")


def nearest(name: str, known: Sequence[str], *, cutoff: float = 0.0) -> str:
    """A hint which known name was meant; if none is near, all of them, or "" with a cutoff."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff or _NEAR)
    if near:
        return f"did you mean {near[0]}?"
    return "" if cutoff else f"known are {', '.join(known)}"


def _find(node: Node, location: Location, *, at_key: bool) -> Node:
    """The node at `location`, or the innermost one around it that is in the file."""
    for depth, part in enumerate(location):
        found = node
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    last = depth == len(location) - 1
                    found = key if last and at_key else value
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
        if found is node:
            break
        node = found
    return node


def _repeated_keys(node: Node) -> Iterable[ScalarNode]:
    if isinstance(node, SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)
    if isinstance(node, MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                yield key
            seen.add(key.value)
            yield from _repeated_keys(value)
