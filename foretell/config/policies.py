"""Which policies and strategies an operator may name, and how one is made from its name."""

from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from foretell.policy import POLICIES, Policy, make_policy
from foretell.policy.baselines import BASELINES
from foretell.provision import Strategy

_LABORATORY = "baselines."


def build_policy(name: str, parameters: dict[str, Any]) -> Policy:
    """The policy `name`, or the laboratory's policy NAME where `name` is `baselines.NAME`.

    ValueError that says which names, parameters and values there are.
    """
    known = BASELINES if name.startswith(_LABORATORY) else POLICIES
    bare_name = name.removeprefix(_LABORATORY)
    if bare_name not in known:
        raise ValueError(f"unknown policy {name!r}; choose one of {', '.join(sorted(known))}")
    return make_policy(bare_name, **_all_typed(known[bare_name], parameters))


def build_strategy(name: str, parameters: dict[str, Any]) -> Strategy:
    """The provisioning strategy `name`.

    ValueError that says which names, parameters and values there are.
    """
    # They need numpy, which most processes that read settings do without.
    from foretell.provision.strategies import STRATEGIES, make_strategy  # noqa: PLC0415

    strategy = STRATEGIES.get(name)
    return make_strategy(name, **(_all_typed(strategy, parameters) if strategy else parameters))


def setting_of(bare_name: str) -> str:
    """The name of that policy in a setting or a cluster file."""
    return bare_name if bare_name in POLICIES else f"{_LABORATORY}{bare_name}"


def _all_typed(chosen: type, parameters: dict[str, Any]) -> dict[str, Any]:
    types = get_type_hints(chosen.__init__)  # type: ignore[misc]  # it is called only there
    return {key: _typed(key, value, types.get(key, Any)) for key, value in parameters.items()}


def _typed(key: str, value: object, wanted: Any) -> Any:
    try:
        return TypeAdapter(wanted).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{key}: {error.errors()[0]['msg']}") from error
