"""`python requirements.py EXTRA...`: what these extras of pyproject.toml need, one a line.

pip installs dependencies only with the package that has them; an image installs them before it.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """The requirements of the package with `extras`; those that name each other are resolved.

    KeyError for an extra that it does not have.
    """
    optional = project["optional-dependencies"]

    def of(extra: str) -> Iterator[str]:
        for each in optional[extra]:
            if own := re.fullmatch(rf"{project['name']}\[(.+)\]", each):
                for other in own[1].split(","):
                    yield from of(other)
            else:
                yield each

    found = [*project["dependencies"], *(each for extra in extras for each in of(extra))]
    return sorted(set(found))


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for each in requirements(project, sys.argv[1:]):
        print(each)  # noqa: T201


if __name__ == "__main__":
    main()
