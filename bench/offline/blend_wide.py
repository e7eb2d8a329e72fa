"""Is the blended order as much faster at other densities, on several engines and with other models?

The rest of BlendServe's evaluation (ASPLOS '26, sections 6.5 and 6.6), simulated as in
`bench.offline.blend`: a grid of densities and sharing ratios, data parallelism, and models from 7B
to 72B with up to eight GPUs. Engines that share one queue take what they have room for next;
others have their part from the beginning.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from bench.offline.blend_models import MODELS, on
from bench.offline.blend_runs import DFS, TRACES, Setting, kept, serve
from bench.offline.blend_wide_page import blocks, draw
from bench.offline.mixes import VIDEO_TOKENS, parts_of
from bench.report import Benchmark, Blocks, Numbers
from bench.runs import run_each

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="hours",
    paths={"DATA": "folder with traces/ and offline/"},
    processes=1,
)
DENSITIES = (0.80, 1.00, 1.20, 1.40)
SHARINGS = (0.05, 0.15, 0.25, 0.35, 0.45)
ENGINES = (1, 2, 4)
LLAMA_8B = "Llama-3-8B"
LEARNT = (DFS, "BlendServe, sampled", "feedback, sampled")
"""Orders that know no length beforehand."""
ALONE = (*LEARNT, "BlendServe, known", "feedback, known")
SEVERAL = (*ALONE, "DFS, one queue", "feedback, sampled, one queue", "feedback, known, one queue")


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    model: str
    engines: int
    aimed_density: float
    aimed_sharing: float
    order: str
    seed: int
    asked: int
    """Requests of the file, but for rounding."""
    video_tokens: int

    @property
    def setting(self) -> Setting:
        aimed = (self.aimed_density, self.aimed_sharing)
        file = Setting(*aimed, self.seed, self.asked, self.video_tokens, even=True)
        if self.model == LLAMA_8B:
            return replace(file, engines=self.engines)
        return on(self.model, file)


def served(case: Case, data: Path) -> dict[str, Any]:
    """The figures of one case, unless a benchmark that was interrupted has them."""
    return kept(BENCH.kept, asdict(case), lambda: serve(case.order, case.setting, data)[1])


def mixable(case: Case, data: Path) -> bool:
    """Whether the three sources can be mixed to the density and sharing that the case asks for."""
    aimed = (case.aimed_density, case.aimed_sharing)
    try:
        parts_of(data, case.setting.work, *aimed, case.video_tokens)
    except ValueError:
        return False
    return True


def cases(options: argparse.Namespace) -> dict[str, list[Case]]:
    """The runs of each section, the orders of one file in a row."""
    seeds, video = range(1, options.seeds + 1), options.video_tokens
    cells, files = options.cell_requests, options.requests

    def grid() -> Iterator[Case]:
        for seed, sharing, density, order in product(
            seeds, options.sharings, options.densities, LEARNT
        ):
            yield Case(LLAMA_8B, 1, density, sharing, order, seed, cells, video)

    def models() -> Iterator[Case]:
        for seed, model, aimed, order in product(seeds, options.models, TRACES.values(), LEARNT):
            yield Case(model, 1, *aimed, order, seed, cells, video)

    def engines() -> Iterator[Case]:
        for seed, aimed, number in product(seeds, map(TRACES.__getitem__, options.traces), ENGINES):
            for order in ALONE if number == 1 else SEVERAL:
                yield Case(LLAMA_8B, number, *aimed, order, seed, files, video)

    return {"engines": list(engines()), "grid": list(grid()), "models": list(models())}


def tables(numbers: Numbers) -> Blocks:
    """The summary, and a table for each section."""
    return blocks(numbers)


def arguments(parser: argparse.ArgumentParser) -> None:
    text = "Requests of a file for one to four engines."
    parser.add_argument("--requests", type=int, default=50_000, help=text)
    text = "Requests of a file of the grid and of the models."
    parser.add_argument("--cell-requests", type=int, default=50_000, help=text)
    parser.add_argument("--seeds", type=int, default=2)
    text = "Traces that one to four engines serve."
    parser.add_argument("--traces", nargs="+", default=list(TRACES), choices=TRACES, help=text)
    text = "Of the grid."
    parser.add_argument("--densities", nargs="+", type=float, default=list(DENSITIES), help=text)
    parser.add_argument("--sharings", nargs="+", type=float, default=list(SHARINGS), help=text)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--video-tokens", type=int, default=VIDEO_TOKENS, help="Mean answer.")


def measure(options: argparse.Namespace) -> Numbers:
    """Run every section; a run that was kept is not run again."""
    sections = cases(options)
    mixed = {
        name: [case for case in found if mixable(case, options.data)]
        for name, found in sections.items()
    }
    every = [case for found in mixed.values() for case in found]
    runs = iter(run_each(partial(served, data=options.data), every, options.processes))
    numbers: Numbers = {name: [next(runs) for _ in found] for name, found in mixed.items()}
    unmixed = {
        (case.model, case.aimed_density, case.aimed_sharing): None
        for name, found in sections.items()
        for case in found
        if case not in mixed[name]
    }
    numbers["unmixed"] = [list(each) for each in unmixed]
    spent = sum(one["cpu_s"] for name in mixed for one in numbers[name])
    numbers["cpu_s"] = round(spent)
    BENCH.kept.unlink()
    if options.write:
        draw(numbers, BENCH.result)
    return numbers


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
