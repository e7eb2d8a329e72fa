"""The `foretell` command. Each subcommand imports what it needs when it runs."""

from typing import Annotated

import typer

from foretell import __version__
from foretell.cli import learning, render
from foretell.cli.measuring import check, verify_engine
from foretell.cli.reference import reference
from foretell.cli.running import demo, explain, run_batch, status
from foretell.cli.simulating import capacity, plan, simulate
from foretell.cli.up import up

app = typer.Typer(
    no_args_is_help=True,
    # Commands inherit the settings of their group.
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    up,
    status,
    demo,
    explain,
    reference,
    check,
    verify_engine,
    simulate,
    capacity,
    plan,
    run_batch,
    learning.train_tagger,
    learning.train_small_tagger,
):
    app.command()(_command)
for _name, _group in (
    ("profile", learning.profile),
    ("render", render.app),
    ("length", learning.length),
):
    app.add_typer(_group, name=_name)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foretell {__version__}")
        raise typer.Exit()


@app.callback()
def foretell(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Foretell: LLM serving placed by prediction."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
