"""What every benchmark shares: its declaration, its arguments, its numbers and its page.

A benchmark is a module `bench/ROOM/NAME.py` that declares a `BENCH = Benchmark(...)`. The first
line of its docstring is the question it answers. Its numbers are kept in
`bench/ROOM/results/NAME.json`, and `bench/ROOM/NAME.md` is its page: tables that the benchmark
writes between markers, and hand-written text around them that says what they show.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foretell.tools.harness.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
"""Folder in which finished runs are kept, so that an interrupted benchmark can resume."""

Numbers = dict[str, Any]
"""All results of a benchmark, as JSON."""
Blocks = dict[str, str]
"""Markdown for the blocks of a page, by the names of the blocks."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The declaration of one benchmark."""

    file: str
    doc: str | None
    takes: str = "minutes"
    """How long a run takes."""
    needs: str = ""
    """What a run needs besides `make setup-dev` and the files of `paths`."""
    python: str = ".venv/bin/python"
    paths: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the files and folders that a run takes, by their names in commands."""
    processes: int = 0
    """Default number of processes; 0 if the benchmark runs in one."""
    packages: Sequence[str] = ("foretell", "numpy")
    """Packages whose versions are part of the result."""

    @property
    def name(self) -> str:
        """The name under which `python -m bench` runs it, `ROOM.NAME`."""
        return ".".join(Path(self.file).resolve().relative_to(ROOT / "bench").with_suffix("").parts)

    @property
    def question(self) -> str:
        """The first line of the module's docstring."""
        assert self.doc, f"{self.file} has no docstring"
        return self.doc.splitlines()[0]

    @property
    def page(self) -> Path:
        """The page with the benchmark's tables; not every benchmark has one."""
        return Path(self.file).resolve().with_suffix(".md")

    @property
    def kept(self) -> Path:
        """The file in which finished runs are kept."""
        return BUILD / f"bench.{self.name}.jsonl"

    @property
    def result(self) -> Path:
        """The file of its numbers."""
        return self.page.parent / "results" / f"{self.page.stem}.json"

    def read(self) -> Numbers:
        """The numbers of the last run that was written."""
        found: Numbers = json.loads(self.result.read_text(encoding="utf-8"))
        return found

    def main(
        self,
        measure: Callable[[argparse.Namespace], Numbers],
        tables: Callable[[Numbers], Blocks],
        arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    ) -> None:
        """Run the benchmark as its command line says, print its tables and write its results.

        With `options.quick`, `measure` does little and nothing is written.
        """
        parser = self._parser()
        if arguments is not None:
            arguments(parser)
        options = parser.parse_args()
        facts = self._facts(options)
        try:
            numbers = {**facts, **measure(options)}
        except KeyboardInterrupt:
            raise SystemExit("interrupted: nothing was written") from None
        blocks = tables(numbers)
        print("\n".join(blocks.values()))
        if options.write and not options.quick:
            target = self.result
            target.parent.mkdir(exist_ok=True)
            target.write_text(_json(numbers), encoding="utf-8")
            self.write(blocks)

    def write(self, blocks: Blocks) -> None:
        """Put tables into the blocks of the page."""
        for block, text in blocks.items():
            write_into(self.page, block, text)

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m bench {self.name}", description=self.question
        )
        for name, what in self.paths.items():
            parser.add_argument(_argument(name), metavar=name, type=Path, help=what)
        if self.processes:
            help_text = "Number of processes that run side by side."
            parser.add_argument("--processes", type=int, default=self.processes, help=help_text)
        help_text = "Something short, to see that it runs; writes nothing."
        parser.add_argument("--quick", action="store_true", help=help_text)
        parser.add_argument(
            "--no-write",
            dest="write",
            action="store_false",
            help="Print the tables only; leave the results of the last run as they are.",
        )
        return parser

    def _facts(self, options: argparse.Namespace) -> Numbers:
        """The command, the date (UTC) and the machine."""
        places = {getattr(options, _argument(name)): name for name in self.paths}
        arguments = [places.get(Path(text), text) for text in sys.argv[1:]]
        return {
            "command": shlex.join(["python", "-m", "bench", self.name, *arguments]),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": describe_machine(*self.packages),
        }


def _json(numbers: Numbers) -> str:
    """Every row on one line."""
    text = json.dumps(numbers, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda row: json.dumps(json.loads(row[0])), text) + "\n"


def _argument(name: str) -> str:
    return name.partition(".")[0].lower()


def made_by(numbers: Mapping[str, Any]) -> str:
    """The line above a page's tables: command, date and machine of the run."""
    spent = f" ({numbers['cpu_s']:,} CPU seconds of runs)" if "cpu_s" in numbers else ""
    return (
        f"Made by `{numbers['command']}` on {numbers['date']}{spent}; "
        f"{machine_line(numbers['machine'])}.\n"
    )


def machine_line(machine: Mapping[str, Any]) -> str:
    """The result of `describe_machine` as one line."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['os']}, Python {machine['python']}, {versions}; "
        f"load average before the run {machine['load_1min']}"
    )


def write_into(page: Path, block: str, text: str) -> None:
    """Replace the text between `<!-- block -->` and `<!-- end of block -->` on a page."""
    begin, end = f"<!-- {block} -->", f"<!-- end of {block} -->"
    written = page.read_text(encoding="utf-8")
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert len(found.findall(written)) == 1, f"{page}: no block {block}"
    filled = f"{begin}\n\n{text.strip()}\n\n{end}"
    page.write_text(found.sub(lambda _: filled, written), encoding="utf-8")
