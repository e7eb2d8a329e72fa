"""How many instances there should be: one strategy per file, found here by its name."""

from foretell.policy.discovery import check_parameters, classes_in
from foretell.provision.base import Strategy

__all__ = ["STRATEGIES", "make_strategy"]

STRATEGIES: dict[str, type[Strategy]] = classes_in(__name__, __path__, "propose")


def make_strategy(name: str, **parameters: object) -> Strategy:
    """A fresh strategy; `parameters` are the keyword-only arguments of its constructor.

    Raises ValueError if there is no such strategy or parameter, with a list of those that exist, or
    if a value is out of range.
    """
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(STRATEGIES)}")
    check_parameters(f"strategy {name!r}", strategy, parameters)
    return strategy(**parameters)
