"""Variables that no setting reads: a misspelt one is refused, as a misspelt field of a file is."""

from collections.abc import Iterable, Iterator

from pydantic_settings import BaseSettings

from foretell.config.marks import nearest
from foretell.config.settings import ALL_SETTINGS

_NEAR = 0.8  # ENGINE is no EMULATOR, SHEDULER is SCHEDULER


def misspelt(settings: type[BaseSettings], variables: Iterable[str]) -> Iterator[str]:
    """What is wrong with the names of the variables that a process with these settings finds.

    Those of other services are theirs to judge: they may be of another version.
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
