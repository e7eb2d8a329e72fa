"""The tables and the picture of `bench.offline.blend_wide`, beside what the paper says."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.offline.blend_runs import DFS, TRACES
from bench.report import Blocks, Numbers, made_by, markdown_table
from bench.stats import plus_minus
from foretell.tools.pictures import figure, save

BLEND, FEEDBACK = "BlendServe, sampled", "feedback, sampled"
QUEUE = f"{FEEDBACK}, one queue"
PAPER_OPTIMUM = {"grid": None, "Llama-3.1-70B": 0.908, "other models": 0.899}
PAPER_GAIN = {"grid": 1.2253, "Llama-3.1-70B": 1.186, "other models": 1.152}
PAPER_TOKENS_PER_S = {
    "1": (11080, 20561, 41928),
    "2": (8408, 16261, 32537),
    "3": (8403, 15623, 32026),
    "4": (6325, 12246, 24541),
}
"""The paper's table 3: BlendServe on 1, 2 and 4 engines, Llama-3-8B."""
_GAIN, _OF_BOUND, _SHARING, _SPREAD, _POINTS = 1.40, 0.95, 0.99, 0.01, 2
"""Goals."""

Found = dict[str, Any]
Key = tuple[Any, ...]


def blocks(numbers: Numbers) -> Blocks:
    """The summary and a table for each section."""
    return {
        "summary": f"{summary(numbers)}\n{goals(numbers)}",
        "grid": "\n".join([made_by(numbers), _about(numbers["grid"]), _grid(numbers)]),
        "engines": "\n".join([_about(numbers["engines"]), *_engines(numbers["engines"])]),
        "models": "\n".join([_about(numbers["models"]), _models(numbers)]),
    }


def _about(runs: list[Found]) -> str:
    seeds = len({one["seed"] for one in runs})
    return (
        f"*Laboratory*: simulated engines, files of {runs[0]['asked']:,} requests, answers of "
        f"videos {runs[0]['video_tokens']:,} tokens on average, {seeds} "
        f"{'seed: no interval' if seeds == 1 else 'seeds; ± is half the 95% interval over them'}.\n"
    )


def _file(one: Found) -> Key:
    return one["model"], one["engines"], one["aimed_density"], one["aimed_sharing"]


def _files(runs: Iterable[Found]) -> dict[Key, list[Found]]:
    """Runs by the file and the engines that they have in common."""
    found: dict[Key, list[Found]] = {}
    for one in runs:
        found.setdefault(_file(one), []).append(one)
    return found


def _of(runs: Iterable[Found], order: str) -> list[Found]:
    return [one for one in runs if one["order"] == order]


def gains(runs: list[Found], order: str) -> list[float]:
    """Throughput to depth-first order's of the same file, of every file and seed."""
    dfs = {(_file(one), one["seed"]): one["seconds"] for one in _of(runs, DFS)}
    return [dfs[_file(one), one["seed"]] / one["seconds"] for one in _of(runs, order)]


def bounds(runs: list[Found]) -> list[float]:
    """How much faster than depth-first order anything can be."""
    return [1.0 / one["share_of_bound"] for one in _of(runs, DFS)]


def _values(runs: list[Found], order: str, name: str) -> list[float]:
    return [one[name] for one in _of(runs, order)]


def _mean(values: Sequence[float], digits: int = 3) -> str:
    if len(values) > 1:
        return plus_minus(values, digits)
    return f"{values[0]:.{digits}f}" if values else ""


def _range(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ({min(values):.2f} to {max(values):.2f})"


_HEADER = (
    "BlendServe to DFS",
    "feedback to DFS",
    "bound to DFS",
    "BlendServe, optimum",
    "feedback, optimum",
    "feedback, bound",
    "feedback, sharing",
)


def _cells(runs: list[Found], mean: Callable[[Sequence[float]], str] = _mean) -> tuple[str, ...]:
    return (
        mean(gains(runs, BLEND)),
        mean(gains(runs, FEEDBACK)),
        f"{fmean(bounds(runs)):.3f}",
        mean(_values(runs, BLEND, "share_of_optimum")),
        mean(_values(runs, FEEDBACK, "share_of_optimum")),
        mean(_values(runs, FEEDBACK, "share_of_bound")),
        f"{fmean(_values(runs, FEEDBACK, 'sharing_kept')):.1%}",
    )


def _grid(numbers: Numbers) -> str:
    rows = []
    for (_, _, density, sharing), runs in _files(numbers["grid"]).items():
        rows.append((f"{density:.2f}, {sharing:.0%} ({_made(runs)})", *_cells(runs)))
    rows += [
        (f"{density:.2f}, {sharing:.0%}", *["cannot be mixed"] * len(_HEADER))
        for model, density, sharing in numbers["unmixed"]
        if model == numbers["grid"][0]["model"]
    ]
    rows.append(("mean (least to most)", *_cells(numbers["grid"], _range)))
    return markdown_table(("density, sharing (as mixed)", *_HEADER), rows)


def _made(runs: list[Found]) -> str:
    density = fmean(one["density"] for one in runs)
    return f"{density:.2f}, {fmean(one['sharing'] for one in runs):.0%}"


def _models(numbers: Numbers) -> str:
    rows = []
    runs = numbers["models"]
    for model, (trace, aimed) in product(_names(numbers), TRACES.items()):
        if [model, *aimed] in numbers["unmixed"]:
            rows.append((f"{model}, trace {trace}", *["cannot be mixed"] * len(_HEADER)))
            continue
        chosen = [one for one in runs if _file(one) == (model, 1, *aimed)]
        rows.append((f"{model}, trace {trace} ({_made(chosen)})", *_cells(chosen)))
    for name, chosen in _groups(numbers).items():
        if name != "grid":
            rows.append((f"{name}: mean (least to most)", *_cells(chosen, _range)))
    return markdown_table(("model, trace (density, sharing as mixed)", *_HEADER), rows)


def _names(numbers: Numbers) -> list[str]:
    return list(dict.fromkeys(one["model"] for one in numbers["models"]))


def _groups(numbers: Numbers) -> dict[str, list[Found]]:
    """The runs that the paper gives one mean of."""
    large = "Llama-3.1-70B"
    return {
        "grid": numbers["grid"],
        large: [one for one in numbers["models"] if one["model"] == large],
        "other models": [one for one in numbers["models"] if one["model"] != large],
    }


def _engines(runs: list[Found]) -> list[str]:
    numbers_of = sorted({one["engines"] for one in runs})
    lines = []
    for trace, aimed in TRACES.items():
        chosen = [
            one for one in runs if (one["aimed_density"], one["aimed_sharing"]) == tuple(aimed)
        ]
        if not chosen:
            continue
        header = (
            f"trace {trace} ({_made(chosen)})",
            *(f"tokens/s, {number}" for number in numbers_of),
            *(f"x at {number}" for number in numbers_of[1:]),
            *(f"bound, {number}" for number in numbers_of),
            f"sharing, {numbers_of[-1]}",
        )
        rows = [
            _engine_row(chosen, order, numbers_of)
            for order in dict.fromkeys(one["order"] for one in chosen)
        ]
        paper = PAPER_TOKENS_PER_S[trace]
        scaled = [f"{value / paper[0]:.2f}" for value in paper[1:]]
        blank = [""] * (len(numbers_of) + 1)
        rows.append(("*paper's BlendServe*", *(f"{value:,}" for value in paper), *scaled, *blank))
        lines.append(markdown_table(header, rows))
    return lines


def alone(order: str) -> str:
    """The order on one engine that an order of several is to be compared with."""
    return order.removesuffix(", one queue")


def scaling(runs: list[Found], order: str, engines: int) -> list[float]:
    """Throughput to the same order's on one engine, of every file and seed."""
    one = {
        (run["aimed_density"], run["aimed_sharing"], run["seed"]): run["seconds"]
        for run in _of(runs, alone(order))
        if run["engines"] == 1
    }
    return [
        one[run["aimed_density"], run["aimed_sharing"], run["seed"]] / run["seconds"]
        for run in _of(runs, order)
        if run["engines"] == engines
    ]


def _engine_row(runs: list[Found], order: str, numbers_of: list[int]) -> tuple[str, ...]:
    def of(name: str, engines: int) -> list[float]:
        return [one[name] for one in _of(runs, order) if one["engines"] == engines]

    def tokens(engines: int) -> str:
        found = of("tokens_per_s", engines)
        return f"{fmean(found):,.0f}" if found else ""

    kept = of("sharing_kept", numbers_of[-1])
    return (
        order,
        *(tokens(number) for number in numbers_of),
        *(_mean(scaling(runs, order, number), 2) for number in numbers_of[1:]),
        *(_mean(of("share_of_bound", number)) for number in numbers_of),
        f"{fmean(kept):.1%}",
    )


def summary(numbers: Numbers) -> str:
    """What the paper says, and what came out."""
    rows = []
    for name, runs in _groups(numbers).items():
        optimum = PAPER_OPTIMUM[name]
        rows += [
            (
                f"{name}: throughput to DFS",
                f"{PAPER_GAIN[name]:.3f}",
                *(_range(gains(runs, order)) for order in (BLEND, FEEDBACK)),
                _range(bounds(runs)),
            ),
            (
                f"{name}: share of the practical optimum",
                f"{optimum:.3f}" if optimum else "",
                *(_range(_values(runs, order, "share_of_optimum")) for order in (BLEND, FEEDBACK)),
                _range([_optimum_of_bound(one) for one in _of(runs, DFS)]),
            ),
        ]
    rows += [_scaling_row(numbers["engines"], engines) for engines in (2, 4)]
    header = ("", "paper", "BlendServe here", "feedback control here", "at most")
    return markdown_table(header, rows)


def goals(numbers: Numbers) -> str:
    """In how many of all files, on one engine, each goal was reached with lengths unknown."""
    runs = [one for name in ("grid", "models") for one in numbers[name]]
    runs += [one for one in numbers["engines"] if one["engines"] == 1]
    files = list(_files(runs).values())

    def reached(test: Callable[[list[Found]], bool]) -> str:
        return f"{sum(map(test, files))} of {len(files)} files"

    def mean(found: list[Found], name: str) -> float:
        return fmean(_values(found, FEEDBACK, name))

    possible = sum(fmean(bounds(found)) >= _GAIN for found in files)
    several = len({one["seed"] for one in runs}) > 1
    rows = [
        (
            f"feedback control at least {_GAIN:.2f} times as fast as DFS",
            f"{reached(lambda found: fmean(gains(found, FEEDBACK)) >= _GAIN)}; "
            f"possible in {possible}",
        ),
        (
            f"feedback control at least {_OF_BOUND:.2f} of the bound",
            reached(lambda found: mean(found, "share_of_bound") >= _OF_BOUND),
        ),
        (
            f"feedback control keeps {_SHARING:.0%} of the sharing",
            reached(lambda found: mean(found, "sharing_kept") >= _SHARING),
        ),
        (
            f"its share of the optimum differs by {_SPREAD:.2f} or less over seeds",
            reached(_steady) if several else "one seed: not known",
        ),
    ]
    for name, paper in PAPER_OPTIMUM.items():
        if paper:
            found = fmean(_values(_groups(numbers)[name], BLEND, "share_of_optimum"))
            rows.append(
                (
                    f"BlendServe within {_POINTS} points of the paper's share, {name}",
                    f"{100 * (found - paper):+.1f} points",
                )
            )
    return markdown_table(("goal", "reached"), rows)


def _steady(runs: list[Found]) -> bool:
    shares = _values(runs, FEEDBACK, "share_of_optimum")
    return max(shares) - min(shares) <= _SPREAD


def _optimum_of_bound(one: Found) -> float:
    """The share of the practical optimum that the lower bound leaves."""
    return float(one["share_of_optimum"] / one["share_of_bound"])


def _scaling_row(runs: list[Found], engines: int) -> tuple[str, ...]:
    column = {1: 0, 2: 1, 4: 2}[engines]
    paper = [values[column] / values[0] for values in PAPER_TOKENS_PER_S.values()]
    single, several = (
        {(*_file(one)[2:], one["seed"]): one for one in _of(runs, DFS) if one["engines"] == number}
        for number in (1, engines)
    )
    most = [
        one["seconds"]
        * one["share_of_bound"]
        / (several[key]["seconds"] * several[key]["share_of_bound"])
        for key, one in single.items()
        if key in several
    ]
    return (
        f"{engines} engines: throughput to one engine's",
        _range(paper),
        _range(scaling(runs, BLEND, engines)),
        _range(scaling(runs, QUEUE, engines)),
        _range(most),
    )


def draw(numbers: Numbers, save_to: Callable[[str], Path]) -> None:
    """The gain over depth-first order in every cell of the grid, as lines over the density."""
    runs = numbers["grid"]
    picture = figure(9.0, 3.6)
    panels = picture.subplots(1, 3, sharex=True, sharey=True)
    sharings = sorted({one["aimed_sharing"] for one in runs})
    for axis, name in zip(panels, (BLEND, FEEDBACK, "no order can be faster"), strict=True):
        for sharing in sharings:
            chosen = [one for one in runs if one["aimed_sharing"] == sharing]
            files = sorted(_files(chosen).items())
            densities = [key[2] for key, _ in files]
            found = [
                fmean(gains(each, name) if name in (BLEND, FEEDBACK) else bounds(each))
                for _, each in files
            ]
            axis.plot(densities, found, marker="o", markersize=3, label=f"sharing {sharing:.0%}")
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("density")
    panels[0].set_ylabel("throughput to depth-first order")
    panels[0].axhspan(1.14, 1.34, color="0.92", zorder=0, label="paper's BlendServe")
    panels[0].legend(fontsize=7)
    save(picture, save_to("-grid.svg"))
