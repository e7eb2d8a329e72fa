"""`foretell profile`: make a GPU profile from aiconfigurator's tables or from a live endpoint."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import taking
from foretell.tools.profiles.options import ImportOptions, MeasureOptions
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
@taking(MeasureOptions)
def measure(
    options: MeasureOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
) -> None:
    """Make a profile by measuring a live, idle endpoint over HTTP."""
    from foretell.tools.profiles.imports import ProfileError

    try:
        from foretell.tools.profiles.show import measure_to

        measure_to(output, replace(options, api_key=os.environ.get("FORETELL_API_KEY", "")))
    except ImportError as error:
        raise SystemExit(
            "profile measure needs scipy: pip install -e '.[profiles]' in the checkout"
        ) from error
    except ProfileError as error:
        raise SystemExit(f"profile measure: {error}") from error
