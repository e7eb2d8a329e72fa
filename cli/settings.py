"""`foretell settings`: list every setting of every service."""

from typing import Annotated

import typer


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As docs/settings.md.")] = False,
) -> None:
    """List every setting of every service."""
    from tools import settings_reference

    if markdown:
        typer.echo(settings_reference.markdown(), nl=False)
    else:
        settings_reference.show()
