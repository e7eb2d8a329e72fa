"""Which benchmarks there are: read from their sources, so that none has to be imported."""

import ast
from collections.abc import Iterable
from pathlib import Path

from bench.report import ROOT, Benchmark, write_into

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"


def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name, `ROOM.NAME`, in alphabetical order."""
    found = (_declared(path) for path in sorted(HERE.glob("*/*.py")))
    return {benchmark.name: benchmark for benchmark in found if benchmark}


def _declared(path: Path) -> Benchmark | None:
    """The declaration in a module; None if it makes none."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="BENCH")], value=ast.Call(keywords=given)):
                arguments = {word.arg: ast.literal_eval(word.value) for word in given if word.arg}
                return Benchmark(str(path), ast.get_docstring(module), **arguments)
    return None


def command(benchmark: Benchmark) -> str:
    """How it is run."""
    return " ".join([benchmark.python, "-m", "bench", benchmark.name, *benchmark.paths])


def answers(benchmark: Benchmark) -> list[Path]:
    """The files that hold its answer, as far as there are any."""
    return [path for path in (benchmark.page, benchmark.result(".json")) if path.exists()]


def needs(benchmark: Benchmark) -> str:
    """What a run needs besides `make setup-dev`."""
    files = [f"{name}: {what}" for name, what in benchmark.paths.items()]
    return "; ".join([*files, *([benchmark.needs] if benchmark.needs else [])])


def readme_table(found: Iterable[Benchmark]) -> str:
    """The table of bench/README.md."""
    lines = ["| question | command | answer | needs | takes |", "|:--|:--|:--|:--|:--|"]
    for benchmark in found:
        kinds = {".md": "page", ".json": "numbers"}
        links = ", ".join(
            f"[{kinds[path.suffix]}]({path.relative_to(HERE)})" for path in answers(benchmark)
        )
        cells = (benchmark.question, f"`{command(benchmark)}`", links, needs(benchmark))
        lines.append(f"| {' | '.join(cells)} | {benchmark.takes} |")
    return "\n".join(lines) + "\n"


def write_readme() -> None:
    """Bring the table of bench/README.md up to date."""
    write_into(README, "benchmarks", readme_table(benchmarks().values()))


def place(path: Path) -> str:
    """A file's place in the repository."""
    return str(path.relative_to(ROOT))
