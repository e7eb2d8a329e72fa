"""Finds the placement policies that a package holds, so that a new one is only a new file."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from foretell.policy.base import Policy


def policies_in(package: str, path: Iterable[str]) -> dict[str, type[Policy]]:
    """The classes with a `name` and a `choose` that the modules of `package` define, by name.

    `path` is the package's `__path__`; its subpackages are not searched.
    """
    found: dict[str, type[Policy]] = {}
    for module in iter_modules(path):
        if module.ispkg:
            continue
        for value in vars(import_module(f"{package}.{module.name}")).values():
            is_policy = isinstance(value, type) and hasattr(value, "name") and _chooses(value)
            if is_policy and value.__module__ == f"{package}.{module.name}":
                assert value.name not in found, f"two policies are called {value.name}"
                found[value.name] = value
    return found


def _chooses(value: type) -> bool:
    return callable(getattr(value, "choose", None))
