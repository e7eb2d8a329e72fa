"""The two commits that are measured: a tree and a Python for each, and a probe that runs there."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.report import BUILD, ROOT

_PROBE = Path(__file__).with_name("probe.py")
_NEEDED = ("psutil>=6",)
"""Packages that a probe needs in addition to those of a local cluster."""
Figures = dict[str, float]


class NotMeasured(Exception):
    """A commit has no such cost, or it could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One commit."""

    name: str
    tree: Path
    python: Path

    def environment(self) -> dict[str, str]:
        """The environment variables with which its modules are found before installed ones."""
        return {**os.environ, "PYTHONPATH": str(self.tree)}

    def run(self, *arguments: str) -> None:
        """Run its Python; raises `subprocess.CalledProcessError`."""
        subprocess.run(
            [str(self.python), *arguments], cwd=self.tree, env=self.environment(), check=True
        )


def here() -> Side:
    """The working tree of this file, with the running Python."""
    return Side("this", ROOT, Path(sys.executable))


def at(commit: str, python: Path | None) -> Side:
    """Check out a commit in `build/watch`, with its own environment; both are kept for the next
    run. `python`: a Python with all that the commit needs, used instead of that environment.

    Raises `subprocess.CalledProcessError`.
    """
    name = _git("rev-parse", "--short=12", f"{commit}^{{commit}}")
    tree = BUILD / "watch" / name
    if not tree.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(tree), name)
    own = tree / ".venv"
    side, done = Side(name, tree, python or own / "bin" / "python"), tree / ".venv-is-ready"
    if not done.exists():
        if python is None:
            subprocess.run([sys.executable, "-m", "venv", str(own)], check=True)
            pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            side.run(*pip, "-e", ".[local]", *_NEEDED)
        done.touch()
    if (tree / "foretell" / "engine" / "warm.py").exists():  # it compiles at start-up
        side.run("-P", "-m", "foretell.engine.warm")
    return side


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Probe:
    """A process that measures one kind of cost of one side on request."""

    def __init__(self, side: Side, kind: str, log: Path) -> None:
        self._side, self._kind, self._log = side, kind, log
        self._process: asyncio.subprocess.Process | None = None

    async def open(self, python: Path) -> None:
        """Start it and wait until it is ready; raises `NotMeasured`."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(str(python), "-P", str(_PROBE), self._kind),
                cwd=self._side.tree,
                env=self._side.environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        await self._answer()

    async def measure(self) -> Figures:
        """The figures of one round by the names of their rows; raises `NotMeasured`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return await self._answer()

    async def close(self) -> None:
        """End it, and with it all that it has started."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()

    async def _answer(self) -> Figures:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            said = self._log.read_text(errors="replace").strip().splitlines() or ["it ended"]
            raise NotMeasured(f"{self._side.name}: {self._kind}: {said[-1]}")
        found: Figures = json.loads(line)
        return found
