"""`foretell profile import`: a GPU profile from kernel tables that others have published."""

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.recorded_run import read_bytes
from foretell.latency.devices import device_spec, model_spec
from foretell.latency.profile_json import profile_from_json, profile_to_json
from foretell.latency.roofline import estimated_kv_blocks, sharded
from foretell.model import GpuProfile
from foretell.settings import load_profile

if TYPE_CHECKING:
    from foretell.latency.importers import StepSource

_EXTRA = "importing profiles needs numpy, and pyarrow for aiconfigurator: pip install "
_EXTRA += "'foretell[profiles]'"


class ProfileError(Exception):
    """A profile that cannot be read or made; the text says why."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the tables do not say. Zero and empty take the default that `cli.main` describes."""

    format: str
    path: Path
    device: str
    model: str
    name: str = ""
    provenance: str = ""
    tensor_parallel: int = 1
    data_parallel: int = 1
    link_gb_per_s: float = 0.0
    link_latency_us: float = 0.0
    kv_blocks: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 16384
    vocabulary: int = 0
    mlp_width: int = 0
    attention: Path | None = None
    attention_heads: int = 0
    attention_kv_heads: int = 0


def profile_of(name_or_file: str) -> GpuProfile:
    """A shipped profile by its name, or one in a file."""
    path = Path(name_or_file)
    try:
        if path.suffix == ".json" or path.is_file():
            return profile_from_json(json.loads(read_bytes(path)))
        return load_profile(name_or_file)
    except (OSError, ValueError) as error:
        raise ProfileError(f"{name_or_file}: {error}") from error


def import_profile(options: ImportOptions) -> GpuProfile:
    """The profile that `options` describe; ProfileError with the reason where there is none."""
    try:
        from foretell.latency.importers import fit_linear, tabulate
    except ImportError as error:
        raise ProfileError(_EXTRA) from error
    try:
        device, model = sharded(
            device_spec(options.device),
            model_spec(options.model),
            options.tensor_parallel,
            options.data_parallel,
        )
        profile = GpuProfile(
            name=options.name or f"{options.device}/{options.model}",
            coefficients_s=(),
            relative_residual=0.0,
            provenance=options.provenance or f"{options.format} tables",
            total_blocks=options.kv_blocks or estimated_kv_blocks(device, model),
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            tensor_parallel=options.tensor_parallel,
            data_parallel=options.data_parallel,
            tables=tabulate(_source(options), options.max_num_seqs),
        )
        coefficients, residual = fit_linear(profile)
    except (OSError, KeyError, ValueError) as error:
        raise ProfileError(f"{options.path}: {error}") from error
    return replace(profile, coefficients_s=coefficients, relative_residual=residual)


def write_profile(profile: GpuProfile, path: Path) -> None:
    """Write it as JSON, a line per entry and the long lists of numbers on one."""
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


def _source(options: ImportOptions) -> "StepSource":
    makers = {
        "llmservingsim": _llmservingsim,
        "vidur": _vidur,
        "aiconfigurator": _aiconfigurator,
    }
    if options.format not in makers:
        raise ValueError(f"unknown format {options.format!r}; known: {', '.join(makers)}")
    if options.format != "llmservingsim" and options.tensor_parallel * options.data_parallel > 1:
        raise ValueError(f"{options.format} tables are imported for one device only")
    return makers[options.format](options)


def _llmservingsim(options: ImportOptions) -> "StepSource":
    from foretell.latency.importers import Link, LlmServingSimSource

    def rows(name: str, *, required: bool = True) -> list[dict[str, str]]:
        return _csv_rows(options.path / f"{name}.csv", required=required)

    link = None
    if options.link_gb_per_s > 0:
        link = Link(options.link_gb_per_s * 1e9, options.link_latency_us * 1e-6)
    return LlmServingSimSource(
        model_spec(options.model),
        rows("dense"),
        rows("per_sequence"),
        rows("attention"),
        skew=rows("skew", required=False),
        moe=rows("moe", required=False),
        link=link,
        tensor_parallel=options.tensor_parallel,
        data_parallel=options.data_parallel,
    )


def _vidur(options: ImportOptions) -> "StepSource":
    from foretell.latency.importers import VidurSource

    if not options.vocabulary:
        raise ValueError("the vocabulary's size is needed for the LM head, which has no table")
    return VidurSource(
        model_spec(options.model),
        device_spec(options.device),
        options.vocabulary,
        _csv_rows(options.path / "mlp.csv"),
        _csv_rows(options.attention or options.path / "attention.csv"),
        heads=options.attention_heads,
        kv_heads=options.attention_kv_heads,
    )


def _aiconfigurator(options: ImportOptions) -> "StepSource":
    from foretell.latency.importers import AiConfiguratorSource

    if not (options.vocabulary and options.mlp_width):
        raise ValueError("the vocabulary's size and the MLP's width are needed to choose GEMMs")
    return AiConfiguratorSource(
        model_spec(options.model),
        device_spec(options.device),
        options.mlp_width,
        options.vocabulary,
        gemm=_parquet_rows(options.path, "gemm_perf"),
        context_attention=_parquet_rows(options.path, "context_attention_perf"),
        generation_attention=_parquet_rows(options.path, "generation_attention_perf"),
    )


def _csv_rows(path: Path, *, required: bool = True) -> list[dict[str, str]]:
    """The rows of `path` or `path`.gz; none where it may be missing."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.exists():
            return list(csv.DictReader(io.StringIO(read_bytes(candidate).decode())))
    if required:
        raise ValueError(f"there is no {path.name}[.gz]")
    return []


def _parquet_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of the only `name`.parquet below `folder`."""
    found = sorted(folder.rglob(f"{name}.parquet"))
    if len(found) != 1:
        raise ValueError(f"{len(found)} files named {name}.parquet; name a folder that has one")
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ProfileError(_EXTRA) from error
    rows: list[dict[str, Any]] = pq.read_table(found[0]).to_pylist()
    return rows
