"""The GPU profiles that ship with the package, and checks of profile names."""

import json
from importlib import resources

from foretell.latency.devices import DEVICES, MODELS
from foretell.latency.profile_json import profile_from_json
from foretell.model import GpuProfile


def list_profiles() -> tuple[str, ...]:
    """The names (`DEVICE/MODEL`) of the GPU profiles that ship with the package, sorted."""
    folder = resources.files("foretell.latency") / "profiles"
    names = (entry.name for entry in folder.iterdir() if entry.name.endswith(".json"))
    return tuple(sorted(name.removesuffix(".json").replace("__", "/") for name in names))


def load_profile(name: str) -> GpuProfile:
    """The shipped GPU profile `name`; otherwise ValueError that lists the known names."""
    path = resources.files("foretell.latency") / "profiles"
    path /= f"{check_shipped_profile(name).replace('/', '__')}.json"
    return profile_from_json(json.loads(path.read_text(encoding="utf-8")))


def check_shipped_profile(name: str) -> str:
    """`name`, if a profile of this name ships; otherwise ValueError that lists those that do."""
    if name not in list_profiles():
        raise ValueError(f"unknown GPU profile {name!r}; known: {', '.join(list_profiles())}")
    return name


def check_profile(name: str) -> str:
    """`name`, if a predictor can start from it: a shipped profile, a datasheet, or nothing ("").

    Otherwise ValueError that lists the choices.
    """
    device, _, model = name.partition("/")
    if not name or name in list_profiles() or (device in DEVICES and model in MODELS):
        return name
    raise ValueError(
        f"profile {name!r} is not known: it may be one of {', '.join(list_profiles())}, or "
        f"DEVICE/MODEL with a device of {', '.join(DEVICES)} and a model of {', '.join(MODELS)}"
    )
