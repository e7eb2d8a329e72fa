"""Commands whose options are the fields of dataclasses."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from itertools import chain
from typing import Any

Command = Callable[..., None]


def taking(*kinds: type[Any]) -> Callable[[Command], Command]:
    """A decorator for commands whose first arguments are `kinds`, made from the command line.

    Every field of theirs that is annotated as an option or argument is one; others are left out.
    """
    shared = [
        [each for each in signature(kind).parameters.values() if _is_option(each)] for kind in kinds
    ]

    def decorated(command: Command) -> Command:
        own = list(signature(command).parameters.values())[len(kinds) :]
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in chain(*shared, own)]
        # What must be given comes first.
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
