"""`foretell profile import`: a GPU profile from aiconfigurator's tables of kernel times."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.config import load_profile
from foretell.latency.devices import DEVICES
from foretell.latency.model_config import MXFP4_BYTES, is_of_experts
from foretell.latency.profile_json import profile_from_json, profile_to_json
from foretell.latency.roofline import estimated_kv_blocks, joint
from foretell.latency.tables import graph_sizes, profile_step_time
from foretell.model import DeviceSpec, EngineConfig, GpuProfile, ModelSpec
from foretell.tools.files import read_bytes
from foretell.tools.profiles.options import ImportOptions
from foretell.tools.profiles.sizes import Datasheet, device_of, known_device, model_of

if TYPE_CHECKING:
    from foretell.latency.importers.aiconfigurator import AiConfiguratorSource
    from foretell.latency.importers.aiconfigurator_rows import Types

_LFS_POINTER = b"version https://git-lfs"
_EXTRA = "importing profiles needs scipy and pyarrow: "
_EXTRA += "pip install -e '.[profiles]' in the checkout"


class ProfileError(Exception):
    """A profile that cannot be read or made; the text says why."""


def profile_of(name_or_file: str) -> GpuProfile:
    """A shipped profile by its name, or one in a file."""
    path = Path(name_or_file)
    try:
        if path.suffix == ".json" or path.is_file():
            return profile_from_json(json.loads(read_bytes(path)))
        return load_profile(name_or_file)
    except (OSError, ValueError) as error:
        raise ProfileError(f"{name_or_file}: {error}") from error


def of_engine(config: EngineConfig, name: str, provenance: str) -> GpuProfile:
    """A profile with an engine's limits, and no step times yet."""
    return GpuProfile(
        name=name,
        coefficients_s=(),
        relative_residual=0.0,
        provenance=provenance,
        block_size_tokens=config.block_size_tokens,
        total_blocks=config.total_blocks,
        kv_cache_groups=config.kv_cache_groups,
        local_kv_cache_groups=config.local_kv_cache_groups,
        sliding_window_tokens=config.sliding_window_tokens,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_scheduled_tokens,
        max_model_len=config.max_model_len,
    )


def with_graphs(profile: GpuProfile, max_num_seqs: int) -> GpuProfile:
    """The profile with CUDA graphs captured for as many sequences as the engine may run."""
    if profile.tables is None or not profile.tables.graph_sizes:
        return profile
    return replace(profile, tables=replace(profile.tables, graph_sizes=graph_sizes(max_num_seqs)))


def import_profile(options: ImportOptions, sheet: Datasheet | None = None) -> GpuProfile:
    """The profile that `options` describe; ProfileError with the reason if there is none.

    `sheet` has the numbers of a device that is not known by its name.
    """
    try:
        from foretell.latency.importers.linear_fit import fit_linear
    except ImportError as error:
        raise ProfileError(_EXTRA) from error
    try:
        name = options.device or known_device(options.path.resolve().parts)
        if not name:
            raise ValueError(f"the path names no device; give --device: {', '.join(DEVICES)}, ...")
        one, model = device_of(name, sheet or Datasheet()), _typed(options)
        device = joint(one, options.tensor_parallel)
        profile = GpuProfile(
            name=options.name or f"{name}/{model.name}",
            coefficients_s=(),
            relative_residual=0.0,
            provenance=f"aiconfigurator tables, {device.name}",
            total_blocks=options.kv_blocks or estimated_kv_blocks(device, model),
            kv_cache_groups=model.kv_cache_groups,
            local_kv_cache_groups=model.local_kv_cache_groups,
            sliding_window_tokens=model.window_tokens,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            tensor_parallel=options.tensor_parallel,
            tables=_source(options, one, model).sampled(options.max_num_seqs),
        )
        return fit_linear(profile, profile_step_time(profile))
    except (OSError, KeyError, ValueError) as error:
        raise ProfileError(f"{options.path}: {_text(error)}") from error


def write_profile(profile: GpuProfile, path: Path) -> None:
    """Write it as JSON, one line per entry, even for long lists of numbers."""
    document = profile_to_json(profile)
    tables = document.pop("tables", None)
    text = json.dumps(document, indent=2)
    if tables is not None:
        lines = ",\n".join(
            f"    {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
            for key, value in tables.items()
        )
        text = text.removesuffix("\n}") + f',\n  "tables": {{\n{lines}\n  }}\n}}'
    path.write_text(text + "\n", encoding="utf-8")


def _typed(options: ImportOptions) -> ModelSpec:
    """The model with the number types that the options ask for."""
    model = model_of(options.model)
    if options.kv_cache:
        model = replace(model, kv_bytes_per_number=_bytes_of(options.kv_cache))
    if options.weights:
        small = _quantised(model, options.weights)
        held = small * _bytes_of(options.weights) + 2.0 * (model.parameters - small)
        model = replace(model, bytes_per_parameter=held / model.parameters)
    return model


def _quantised(model: ModelSpec, weights: str) -> float:
    """The number of quantised parameters: all but embedding and head; with MXFP4 only experts."""
    if is_of_experts(weights):
        return model.expert_parameters
    return model.parameters - 2 * model.vocabulary * model.hidden_size


def _types(options: ImportOptions, model: ModelSpec) -> "Types":
    """The names of the types; ValueError if weights have 8 or 4 bits, which several types have."""
    from foretell.latency.importers.aiconfigurator_rows import Types

    if not options.weights and model.bytes_per_parameter < 2.0:
        raise ValueError(f"the weights of {model.name} are not 16-bit; give --weights")
    of_cache = "fp8" if model.kv_bytes_per_number == 1.0 else "bfloat16"
    return Types(options.weights or "bfloat16", options.kv_cache or of_cache)


def _bytes_of(kind: str) -> float:
    """Bytes of a number of a type, whose name says the bits: bfloat16, fp8_block, w4a16_mxfp4."""
    if is_of_experts(kind):
        return MXFP4_BYTES
    bits = re.search(r"\d+", kind)
    if not bits:
        raise ValueError(f"the name of the type {kind} does not say its bits")
    return int(bits[0]) / 8.0


def _source(options: ImportOptions, device: DeviceSpec, model: ModelSpec) -> "AiConfiguratorSource":
    from foretell.latency.importers.aiconfigurator import (
        AiConfiguratorSource,
        AiConfiguratorTables,
    )

    several = options.tensor_parallel > 1
    tables = AiConfiguratorTables(
        gemm=_versions(options.path, "gemm_perf"),
        context_attention=_versions(options.path, "context_attention_perf"),
        generation_attention=_versions(options.path, "generation_attention_perf"),
        all_reduce=_versions(options.path, "custom_allreduce_perf") if several else (),
        fused_all_reduce=_fused_all_reduce(options.path) if several else (),
        moe=_versions(options.path, "moe_perf") if model.experts else (),
    )
    return AiConfiguratorSource(
        model,
        device,
        tables,
        tensor_parallel=options.tensor_parallel,
        expert_parallel=options.expert_parallel,
        types=_types(options, model),
        fused_mib=options.fused_all_reduce_mib,
    )


def _text(error: Exception) -> str:
    """The message of the error; `str` would put that of a KeyError in quotes."""
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _versions(folder: Path, name: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of vLLM's tables `name` below `folder`, Parquet or text (CSV), newest first."""
    found = _files(folder, name)
    of_vllm = [path for path in found if "vllm" in path.parts] or found
    if not of_vllm:
        raise ValueError(f"there is no {name}.parquet or {name}.txt")
    yield from _newest_first(of_vllm, name)


def _fused_all_reduce(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of TensorRT-LLM's all-reduce tables, if the folder has any."""
    name = "custom_allreduce_perf"
    return _newest_first([path for path in _files(folder, name) if "trtllm" in path.parts], name)


def _files(folder: Path, name: str) -> list[Path]:
    return [path for path in folder.rglob(f"{name}.*") if path.suffix in {".parquet", ".txt"}]


def _newest_first(paths: list[Path], name: str) -> Iterator[list[dict[str, Any]]]:
    by_version = {_version(path.parent.name): path for path in paths}
    if len(by_version) < len(paths):
        raise ValueError(f"two files named {name} are of one version; name a folder that has one")
    for version in sorted(by_version, reverse=True):
        yield _rows(by_version[version])


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ValueError(f"{path.name} is left in Git LFS; run `git lfs pull` in its checkout")
    if path.suffix == ".txt":
        return list(csv.DictReader(io.StringIO(read_bytes(path).decode())))
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ProfileError(_EXTRA) from error
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def _version(folder: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder)))
