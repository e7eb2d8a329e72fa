"""Options that several commands have, and commands whose options are the fields of dataclasses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

Command = Callable[..., None]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, not a table.")]
ApiKey = Annotated[
    str, typer.Option(envvar="FORETELL_API_KEY", help="API key, if schedulers need one.")
]
ClusterFile = Annotated[
    str, typer.Option(metavar="FILE", help="Cluster file with their addresses.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")]
Processes = Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")]
Qps = Annotated[float, typer.Option(min=0, help="Requests a second; 0: by the times of the trace.")]
Seed = Annotated[int, typer.Option(help="Seed for all random draws.")]
TestFiles = Annotated[
    list[Path] | None, typer.Option("--test", help="Score the model on this file too; repeatable.")
]
Urls = Annotated[
    list[str] | None,
    typer.Option("--url", help="Address of schedulers, repeatable; default http://127.0.0.1:8000."),
]


@contextmanager
def refusing(command: str, *errors: type[Exception], needs: str = "") -> Iterator[None]:
    """End a command with a one-line message if the block raises one of `errors`, or if it lacks a
    package that the extra `needs` installs."""
    try:
        yield
    except errors as error:
        raise SystemExit(f"{command}: {error}") from error
    except ImportError as error:
        if not needs:
            raise
        install = f"pip install -e '.[{needs}]' in the checkout"
        raise SystemExit(f"{command}: {error}; {install}") from error


def taking(*kinds: type[Any]) -> Callable[[Command], Command]:
    """A decorator for commands whose first arguments are `kinds`, made from the command line.

    Fields of `kinds` annotated as options or arguments become those of the command; no others do.
    """
    shared = [
        [each for each in signature(kind).parameters.values() if _is_option(each)] for kind in kinds
    ]

    def decorated(command: Command) -> Command:
        own = list(signature(command).parameters.values())[len(kinds) :]
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in chain(*shared, own)]
        # Required parameters come first.
        parameters.sort(key=lambda each: each.default is not Parameter.empty)

        def run(**given: Any) -> None:
            made = [
                kind(**{each.name: given.pop(each.name) for each in fields})
                for kind, fields in zip(kinds, shared, strict=True)
            ]
            command(*made, **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorated


def _is_option(field: Parameter) -> bool:
    return hasattr(field.annotation, "__metadata__")
