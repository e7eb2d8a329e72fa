"""Find misspelt environment variables, which are refused as misspelt fields of a file are."""

from collections.abc import Iterable, Iterator

from pydantic_settings import BaseSettings

from foretell.config.marks import nearest
from foretell.config.settings import ALL_SETTINGS

_NEAR = 0.8  # ENGINE is not near EMULATOR, SHEDULER is near SCHEDULER


def misspelt(settings: type[BaseSettings], variables: Iterable[str]) -> Iterator[str]:
    """Errors in the names of the environment variables of a process with these settings.

    Variables of other services are not checked: these may be of another version.
    """
    own = _prefix(settings)
    known = [f"{own}{name.upper()}" for name in settings.model_fields]
    services = [_prefix(each).split("_")[1] for each in ALL_SETTINGS]
    for name in sorted(variables):
        upper = name.upper()
        if upper.startswith(own):
            if upper not in known:
                yield f"{name}: is no setting; {nearest(upper, known)}"
        elif upper.startswith("FORETELL_"):
            service = upper.split("_")[1]
            near = nearest(service, services, cutoff=_NEAR)
            if service not in services and near:
                yield f"{name}: no service is called {service}; {near}"


def _prefix(settings: type[BaseSettings]) -> str:
    return str(settings.model_config["env_prefix"])
