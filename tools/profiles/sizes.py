"""The device and the model that a command names, known or not."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from foretell.latency.devices import DEVICES, MODELS, device_spec, model_spec
from foretell.latency.model_config import model_from_config
from foretell.model import DeviceSpec, ModelSpec
from foretell.tools.files import read_bytes


@dataclass(frozen=True, slots=True)
class Datasheet:
    """Numbers of a device that is not known by its name; 0: as known."""

    device_tflops: Annotated[
        float, typer.Option(min=0, help="The device's dense 16-bit TFLOP/s; 0: as known.")
    ] = 0.0
    device_gb_per_s: Annotated[
        float, typer.Option(min=0, help="The device's memory bandwidth, GB/s; 0: as known.")
    ] = 0.0
    device_gb: Annotated[
        float, typer.Option(min=0, help="The device's memory, GB; 0: as known.")
    ] = 0.0


def device_of(name: str, sheet: Datasheet) -> DeviceSpec:
    """The device, with the numbers of `sheet`; KeyError if its rates are not known."""
    if name not in DEVICES and not (sheet.device_tflops and sheet.device_gb_per_s):
        try:
            return device_spec(name)
        except KeyError as error:
            raise KeyError(f"{error.args[0]}; or give --device-tflops, --device-gb-per-s") from None
    known = DEVICES.get(name, DeviceSpec(name, 0.0, 0.0, 0.0))
    return DeviceSpec(
        name,
        sheet.device_tflops * 1e12 or known.flops,
        sheet.device_gb_per_s * 1e9 or known.memory_bandwidth_bytes_per_s,
        sheet.device_gb * 1e9 or known.memory_bytes,
    )


def model_of(name_or_file: str) -> ModelSpec:
    """A known model, or the one of a `config.json` or of the folder that has it.

    Its name is that of the folder. KeyError for an unknown name, ValueError for a malformed file.
    """
    path = Path(name_or_file)
    if path.is_dir():
        path /= "config.json"
    if name_or_file in MODELS or not path.is_file():
        try:
            return model_spec(name_or_file)
        except KeyError as error:
            raise KeyError(f"{error.args[0]}; or give its config.json") from None
    document = json.loads(read_bytes(path))
    if not isinstance(document, dict):
        raise ValueError(f"{path} is no model's config.json")
    return model_from_config(document, path.resolve().parent.name)


def known_device(parts: Iterable[str]) -> str:
    """The device whose name or family begins a part (`h100_sxm`: H100-SXM); empty: none."""
    families: dict[str, str] = {}
    for device in DEVICES:
        families.setdefault(device.partition("-")[0], device)
    names = families | {device: device for device in DEVICES}
    plain_parts = [_plain(part) for part in parts]
    found = [name for name in names if any(p.startswith(_plain(name)) for p in plain_parts)]
    return names[max(found, key=len)] if found else ""


def _plain(text: str) -> str:
    """Only the letters and digits, in lower case, for comparison."""
    return "".join(filter(str.isalnum, text.lower()))
