"""Files of offline requests: one JSON object a line, as the OpenAI batch API takes them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from foretell.offline.requests import Line, requests_of
from foretell.offline.tree import Prompt


def read_lines(path: Path) -> Iterator[tuple[Line, Prompt]]:
    """The requests of a file. ValueError that names file and line for what is no request."""
    with path.open("rb") as file:
        try:
            yield from requests_of(file)
        except ValueError as error:
            raise ValueError(f"{path}, {error}") from error


def write_lines(path: Path, lines: Iterable[Line], output: Path) -> None:
    """Write `lines` of the file at `path` to `output`; ValueError if both are the same file."""
    if output.exists() and output.samefile(path):
        raise ValueError(f"{output} is the input")
    with path.open("rb") as source, output.open("wb") as target:
        for line in lines:
            source.seek(line.begin_bytes)
            target.write(source.read(line.length_bytes).rstrip(b"\r\n") + b"\n")
