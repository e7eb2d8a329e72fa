"""Has anything that users pay become dearer?

Measures this tree and an earlier commit alternately, round by round, in one run, and prints the
ratios of the rounds: what else the machine does hits both. CPU time is that of the processes
themselves. The earlier commit is checked out into `build/watch`, with an environment of its own;
the first run takes some minutes longer for it.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path
from statistics import median

from bench.report import ROOT, machine_line
from bench.watch.probe import KINDS
from bench.watch.sides import Figures, NotMeasured, Probe, Side, at, here
from foretell.tools.harness.machine import describe_machine
from foretell.tools.markdown import markdown_table

REFERENCE = "5bce15dec6ee"
"""The last commit of 2026-11-23: `compare.md` compares its byte path with other gateways."""
ROUNDS = {"gateway": 9, "predict": 9, "placement": 9, "plugin": 7, "start": 5}
QUICK_ROUNDS = 3
_HEADER = ("cost", "reference", "this", "ratio", "interval of its median")

Pairs = list[tuple[float, float]]
"""For each round, the reference's figure and this tree's."""


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest symmetric pair of order statistics that covers the median with at least 95%
    probability; the least and the largest if there are too few values."""
    ordered, count = sorted(values), len(values)
    left = 0
    while 2 * sum(comb(count, i) for i in range(left + 2)) <= 0.05 * 2**count:
        left += 1
    return ordered[left], ordered[count - 1 - left]


async def measure(
    kind: str, sides: tuple[Side, Side], vllm: Path, rounds: int, folder: Path
) -> dict[str, Pairs]:
    """Measure one kind of cost: the pairs of each row. Raises `NotMeasured`."""
    found: dict[str, Pairs] = {}
    probes = [Probe(side, kind, folder / f"{kind}-{side.name}.log") for side in sides]
    try:
        for side, probe in zip(sides, probes, strict=True):
            await probe.open(vllm if kind == "plugin" else side.python)
        for number in range(-1, rounds):  # the first one warms up
            figures: list[Figures] = [{}, {}]
            for index in (0, 1) if number % 2 else (1, 0):
                figures[index] = await probes[index].measure()
            for row in figures[1] if number >= 0 else ():
                if row in figures[0]:
                    found.setdefault(row, []).append((figures[0][row], figures[1][row]))
    finally:
        await asyncio.gather(*(probe.close() for probe in probes))
    return found


def row_of(name: str, pairs: Pairs) -> tuple[str, ...]:
    """A row of the table: medians of both, and the median of the rounds' ratios."""
    ratios = [this / reference for reference, this in pairs]
    low, high = median_interval(ratios)
    before, now = (median(each) for each in zip(*pairs, strict=True))
    return (
        name,
        f"{before:,.4g}",
        f"{now:,.4g}",
        f"{median(ratios):.2f}",
        f"{low:.2f} to {high:.2f}",
    )


async def run(options: argparse.Namespace) -> None:
    """Measure all kinds, print each row as soon as it is known, and then the table."""
    machine = describe_machine("foretell")  # before this run adds to the load average
    sides = at(options.reference, options.reference_python), here()
    rows: list[tuple[str, ...]] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="foretell-watch-") as folder:
        for kind in options.only:
            rounds = min(ROUNDS[kind], QUICK_ROUNDS) if options.quick else ROUNDS[kind]
            try:
                if kind == "plugin" and not options.vllm_python.exists():
                    raise NotMeasured(f"plugin: there is no {options.vllm_python}")
                found = await measure(kind, sides, options.vllm_python, rounds, Path(folder))
            except NotMeasured as why:
                failed.append(f"Not measured: {why}")
                print(failed[-1], flush=True)
                continue
            for name, pairs in found.items():
                rows.append(row_of(name, pairs))
                print(*rows[-1], sep=" | ", flush=True)
    print(f"\nThis tree beside {sides[0].name}; {machine_line(machine)}.\n")
    print(markdown_table(_HEADER, rows))
    print("\n".join(failed))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.watch", description=__doc__)
    parser.add_argument("--reference", default=REFERENCE, help="The commit to compare with.")
    parser.add_argument(
        "--reference-python",
        type=lambda text: Path(text).absolute(),
        help="A Python with all that the reference needs, in place of its own environment.",
    )
    parser.add_argument(
        "--vllm-python",
        type=Path,
        default=ROOT / ".venv-vllm" / "bin" / "python",
        help="A Python with vLLM, for the plugin.",
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds of each.")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="Kinds.")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
