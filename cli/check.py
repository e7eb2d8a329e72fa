"""`foretell check`: what Foretell is worth on this machine."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from foretell.tools.check.options import POLICIES, STAGES, CheckOptions, Stage

_LIST = "Comma-separated; "


def check(
    model: Annotated[str, typer.Option(help="Folder or name of a model with weights.")] = "",
    dummy: Annotated[
        str,
        typer.Option(
            help="A shipped shape with random weights, which needs no download: qwen3-0.6b, "
            "qwen3-1.7b, qwen3-8b, llama-3.1-8b, tiny (the default without a GPU)."
        ),
    ] = "",
    minutes: Annotated[
        float, typer.Option(min=1, help="The whole time, from the start to the page.")
    ] = 10.0,
    engines: Annotated[
        int,
        typer.Option(min=0, max=16, help="Engines, two at least; 0: one a GPU, or as fit on one."),
    ] = 0,
    engine_args: Annotated[str, typer.Option(help="Further flags of vLLM for every engine.")] = "",
    python: Annotated[
        str, typer.Option(help="Python that has vLLM installed; default: this one.")
    ] = "",
    profile: Annotated[
        str, typer.Option(help="GPU profile DEVICE/MODEL that predictors start from.")
    ] = "",
    stages: Annotated[str, typer.Option(help=f"{_LIST}of {', '.join(STAGES)}.")] = ",".join(STAGES),
    policies: Annotated[
        str, typer.Option(help=f"{_LIST}what stage `cluster` compares.")
    ] = ",".join(POLICIES),
    ttft_target: Annotated[
        float, typer.Option(min=0.001, help="Seconds within which a good answer begins.")
    ] = 1.0,
    tpot_target: Annotated[
        float, typer.Option(min=0.001, help="Mean seconds between tokens of a good answer.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of all requests.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of results.")] = Path(
        "foretell-check"
    ),
    report: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Make the page of what a folder holds; run nothing."),
    ] = None,
) -> None:
    """Measure what Foretell is worth on this machine, and write one page of it.

    Starts real vLLM engines, on its GPUs or else on the CPU. Every stage writes what it found
    before the next one begins; `--report` makes the page of a run that was killed.
    """
    if report is not None:
        from foretell.tools.check.page import NoResults, write_page

        try:
            print(write_page(report).read_text(encoding="utf-8"))  # noqa: T201  the output
        except NoResults as error:
            raise SystemExit(f"foretell check: {error}") from None
        return
    from foretell.tools.check.run import check as run

    chosen = _split(stages)
    known = get_args(Stage)
    if unknown := [each for each in chosen if each not in known]:
        raise typer.BadParameter(f"no stage {unknown[0]!r}; there are {', '.join(known)}")
    run(
        CheckOptions(
            output=output,
            model=model,
            dummy=dummy,
            minutes=minutes,
            engines=engines,
            engine_args=engine_args,
            python=python and str(Path(python).absolute()),
            profile=profile,
            stages=tuple(stage for stage in known if stage in chosen),
            policies=tuple(_split(policies)),
            ttft_target_s=ttft_target,
            tpot_target_s=tpot_target,
            seed=seed,
        )
    )


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
