"""`foretell reference`: everything that can be set, called or measured, as docs/reference.md."""

import typer
from typer.core import TyperGroup


def reference(context: typer.Context) -> None:
    """Print the reference of settings, commands, metrics and headers as Markdown."""
    from foretell.tools.reference import markdown

    foretell = context.find_root().command
    assert isinstance(foretell, TyperGroup), "the root command has subcommands"
    typer.echo(markdown(foretell), nl=False)
