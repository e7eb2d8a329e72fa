"""Finds the classes of one kind in a package, so that adding one takes only a new file."""

from collections.abc import Iterable
from importlib import import_module
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any

from foretell.policy.base import Policy


def policies_in(package: str, path: Iterable[str]) -> dict[str, type[Policy]]:
    """Return the placement policies that the modules of `package` define, by name."""
    return classes_in(package, path, "choose")


def classes_in(package: str, path: Iterable[str], method: str) -> dict[str, type[Any]]:
    """Return the classes with a `name` and this method that modules of `package` define, by name.

    `path` is the package's `__path__`; its subpackages are not searched.
    """
    found: dict[str, type[Any]] = {}
    for module in iter_modules(path):
        if module.ispkg:
            continue
        for value in vars(import_module(f"{package}.{module.name}")).values():
            is_one = isinstance(value, type) and hasattr(value, "name") and hasattr(value, method)
            if is_one and value.__module__ == f"{package}.{module.name}":
                assert value.name not in found, f"two classes are called {value.name}"
                found[value.name] = value
    return found


def check_parameters(what: str, made: type[Any], parameters: Iterable[str]) -> None:
    """Raise ValueError unless all `parameters` are keyword-only arguments of `made`."""
    arguments = signature(made).parameters.values()
    known = [argument.name for argument in arguments if argument.kind is Parameter.KEYWORD_ONLY]
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ValueError(
            f"{what} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}"
        )
