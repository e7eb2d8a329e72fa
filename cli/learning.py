"""Commands that make and evaluate models and profiles: `foretell profile`, `length`, `train-*`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import Output, Seed, TestFiles, refusing, taking
from foretell.tools.profiles.options import ImportOptions
from foretell.tools.profiles.sizes import Datasheet
from foretell.tools.train.options import TrainOptions

profile = typer.Typer(
    no_args_is_help=True,
    help="Make GPU profiles: how fast one model runs on one device (docs/tools.md).",
)
length = typer.Typer(
    no_args_is_help=True, help="Evaluate estimates of output lengths (docs/tools.md)."
)


@profile.command("import")
@taking(ImportOptions, Datasheet)
def profile_import(options: ImportOptions, sheet: Datasheet, output: Output) -> None:
    """Make a profile from NVIDIA aiconfigurator's tables of kernel times."""
    from foretell.tools.profiles.imports import ProfileError, import_profile, write_profile

    with refusing("profile import", ProfileError):
        write_profile(import_profile(options, sheet), output)


@profile.command()
def calibrated(
    predictor: Annotated[
        str, typer.Argument(help="Address of an engine's predictor, e.g. 127.0.0.1:50051.")
    ],
    output: Output,
    name: Annotated[
        str, typer.Option(help="Name of the profile, DEVICE/MODEL; empty: calibrated/MODEL.")
    ] = "",
) -> None:
    """Make a profile of what a running predictor has learnt of its engine."""
    from foretell.tools.profiles.imports import ProfileError, write_profile

    with refusing("profile calibrated", needs="profiles"):
        from foretell.tools.profiles.calibrated import calibrated_profile
    with refusing("profile calibrated", ProfileError):
        write_profile(calibrated_profile(predictor, name), output)


@length.command("eval")
def length_eval(
    file: Annotated[Path, typer.Argument(help="Answered prompts, .jsonl or .jsonl.gz.")],
    stream: Annotated[
        bool, typer.Option("--stream", help="Learn from each answer before the next estimate.")
    ] = False,
    model: Annotated[
        str,
        typer.Option(help="Folder of a length model; or shipped; or none: history alone."),
    ] = "shipped",
    train: Annotated[
        Path | None,
        typer.Option(
            help="With --model none: answered prompts that the history has learnt from before."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of lines to read; 0: all.")] = 0,
) -> None:
    """Print how good estimates of output lengths are, as JSON."""
    with refusing("length eval", needs="length"):
        from foretell.tools.length.report import evaluate_file

    evaluate_file(file, train=train, model=model, stream=stream, limit=limit)


@taking(TrainOptions)
def train_tagger(
    options: TrainOptions,
    test: TestFiles = None,
    window: Annotated[
        tuple[int, int, int, int, int, int] | None,
        typer.Option(
            help="Tokens read: head and tail of the prompt, of the prompt before, of its answer.",
            show_default="64 32 20 6 10 16",
        ),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(help="Folder of a trained model to learn from, too; repeatable."),
    ] = None,
) -> None:
    """Train a length model. The same command continues a run that was stopped."""
    with refusing("train-tagger", needs="train"):
        from rich.console import Console

        from foretell.length.window import ReadWindow
        from foretell.tools.train.run import train_tagger as run

    if window:
        options = replace(options, window=ReadWindow(window[:2], window[2:4], window[4:]))
    console = Console(stderr=True)
    with refusing("train-tagger", ValueError, OSError):
        try:
            run(replace(options, teachers=tuple(teacher or ())), test or [], console)
        except KeyboardInterrupt:
            raise SystemExit(
                "train-tagger: stopped; the same command continues from here"
            ) from None
    console.print(f"{options.out}: ready; what it can do is in {options.out / 'README.md'}")


def train_small_tagger(
    train: Annotated[Path, typer.Argument(help="Answered prompts, as for `train-tagger`.")],
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of a length model, which is the teacher; the small one is written there."
        ),
    ],
    work: Annotated[
        Path, typer.Option(help="Folder to keep the length model's answers in.")
    ] = Path(".small-tagger"),
    test: TestFiles = None,
    seed: Seed = 0,
) -> None:
    """Train the small model that answers for a length model under load."""
    with refusing("train-small-tagger", needs="length"):
        from rich.console import Console

        from foretell.tools.train.small import train_small
    console = Console(stderr=True)
    with refusing("train-small-tagger", ValueError, OSError):
        scores = train_small(train, folder, work, test or [], seed, console)
    for name, s in scores.items():
        console.print(f"{name}: MAE {s.mae:.1f}, Acc-50 {s.acc_50:.1%}, pinball {s.pinball:.1f}")
