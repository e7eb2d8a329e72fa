"""The list of benchmarks, and the table of bench/README.md."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from bench.report import ROOT, Benchmark, write_into

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"


def names() -> list[str]:
    """The names of all benchmarks, `ROOM.NAME`, in alphabetical order, without importing them."""
    found = (path for path in sorted(HERE.glob("*/*.py")) if "\nBENCH = " in path.read_text())
    return [f"{path.parent.name}.{path.stem}" for path in found]


def benchmarks() -> dict[str, Benchmark]:
    """The declarations of all benchmarks, by name."""
    return {name: import_module(f"bench.{name}").BENCH for name in names()}


def answers(benchmark: Benchmark) -> list[Path]:
    """The existing files that hold its answer."""
    return [path for path in (benchmark.page, benchmark.result) if path.exists()]


def needs(benchmark: Benchmark) -> str:
    """What a run needs besides `make setup-dev`."""
    files = [f"{name}: {what}" for name, what in benchmark.paths.items()]
    return "; ".join([*files, *([benchmark.needs] if benchmark.needs else [])])


def readme_table(found: Iterable[Benchmark]) -> str:
    """The table of bench/README.md."""
    lines = ["| question | command | answer | needs | takes |", "|:--|:--|:--|:--|:--|"]
    kinds = {".md": "page", ".json": "numbers"}
    for benchmark in found:
        links = (f"[{kinds[p.suffix]}]({p.relative_to(HERE)})" for p in answers(benchmark))
        command = [benchmark.python, "-m", "bench", benchmark.name, *benchmark.paths]
        cells = (benchmark.question, f"`{' '.join(command)}`", ", ".join(links), needs(benchmark))
        lines.append(f"| {' | '.join(cells)} | {benchmark.takes} |")
    return "\n".join(lines) + "\n"


def write_readme() -> None:
    """Bring the table of bench/README.md up to date."""
    write_into(README, "benchmarks", readme_table(benchmarks().values()))


def place(path: Path) -> str:
    """A file's path in the repository."""
    return str(path.relative_to(ROOT))
