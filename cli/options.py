"""Commands whose options are the fields of a dataclass."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

Command = Callable[..., None]


def taking(kind: type[Any]) -> Callable[[Command], Command]:
    """A decorator for commands whose first argument is a `kind`, made from the command line.

    Every field of it that is annotated as an option or argument is one; the others are left out.
    """
    shared = [
        p for p in signature(kind).parameters.values() if hasattr(p.annotation, "__metadata__")
    ]

    def decorated(command: Command) -> Command:
        own = list(signature(command).parameters.values())[1:]
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*shared, *own)]

        def run(**given: Any) -> None:
            command(kind(**{each.name: given.pop(each.name) for each in shared}), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorated
