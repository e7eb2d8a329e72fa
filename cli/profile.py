"""`foretell profile`: make a GPU profile from aiconfigurator's tables or a predictor."""

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.tools.profiles.options import ImportOptions
from foretell.tools.profiles.sizes import Datasheet

app = typer.Typer(
    no_args_is_help=True,
    help="Make GPU profiles: how fast one model runs on one device (docs/tools.md).",
)


@app.command("import")
@taking(ImportOptions, Datasheet)
def profile_import(
    options: ImportOptions,
    sheet: Datasheet,
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
) -> None:
    """Make a profile from NVIDIA aiconfigurator's tables of kernel times."""
    from foretell.tools.profiles.imports import ProfileError, import_profile, write_profile

    try:
        write_profile(import_profile(options, sheet), output)
    except ProfileError as error:
        raise SystemExit(f"profile import: {error}") from error


@app.command()
def calibrated(
    predictor: Annotated[
        str, typer.Argument(help="gRPC address of an engine's predictor, e.g. 127.0.0.1:50051.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    name: Annotated[
        str, typer.Option(help="Name of the profile, DEVICE/MODEL; empty: calibrated/MODEL.")
    ] = "",
) -> None:
    """Make a profile of what a running predictor has learnt of its engine."""
    from foretell.tools.profiles.imports import ProfileError, write_profile

    try:
        from foretell.tools.profiles.calibrated import calibrated_profile
    except ImportError as error:
        raise SystemExit(
            f"profile calibrated: {error}; pip install -e '.[profiles]' in the checkout"
        ) from error
    try:
        write_profile(calibrated_profile(predictor, name), output)
    except ProfileError as error:
        raise SystemExit(f"profile calibrated: {error}") from error
