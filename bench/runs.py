"""Many runs in several processes, with a progress bar on stderr; finished ones are kept on disk."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bench.report import ROOT
from foretell.tools.progress import side_by_side


@cache
def state_of_the_code() -> str:
    """A digest of the sources that determine the result of a simulated run."""
    digest = hashlib.sha256()
    library = ROOT / "foretell"
    paths = [*library.rglob("*.py"), *library.rglob("*.h"), *library.rglob("*.json")]
    for path in sorted([*paths, *(ROOT / "tools" / "simulate").glob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Kept:
    """Results by case, in a JSON lines file, so that an interrupted benchmark can resume."""

    def __init__(self, path: Path, state: str) -> None:
        """Only results that were kept with the same `state` count."""
        self._path, self._state = path, state
        self._found: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                if entry["state"] == state:
                    self._found[entry["asked"]] = entry["result"]

    def all_of(
        self, work: Callable[[Any], Any], asked: Sequence[Any], processes: int, what: str
    ) -> list[Any]:
        """The result of `work` for each of `asked`, as JSON. Missing results are computed by that
        many processes; `what` names them in the progress bar."""
        missing = [each for each in dict.fromkeys(asked) if repr(each) not in self._found]
        for each, result in zip(missing, side_by_side(work, missing, processes, what), strict=True):
            self.keep(each, result)
        return [self._found[repr(each)] for each in asked]

    def keep(self, asked: object, result: Any) -> None:
        """Keep a result and write it to disk at once."""
        self._found[repr(asked)] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"state": self._state, "asked": repr(asked), "result": result}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def get(self, asked: object) -> Any:
        """The kept result of a case; None if there is none."""
        return self._found.get(repr(asked))
