"""`foretell profile`: make a GPU profile from published tables or from a live endpoint."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Make GPU profiles: how fast one model runs on one device (docs/tools.md).",
)


class TableFormat(StrEnum):
    """The formats of tables that `foretell profile import` reads."""

    LLMSERVINGSIM = "llmservingsim"
    VIDUR = "vidur"
    AICONFIGURATOR = "aiconfigurator"


@app.command("import")
def profile_import(
    path: Annotated[Path, typer.Argument(help="Folder of the tables.")],
    table_format: Annotated[TableFormat, typer.Option("--format", help="Format of the tables.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    device: Annotated[
        str, typer.Option(help="Device, e.g. RTXPRO6000; empty: the one in the path.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Model, e.g. Llama-3.1-8B; empty: the one in the path.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the profile; empty: DEVICE/MODEL.")] = "",
    provenance: Annotated[str, typer.Option(help="Text that says where the tables are from.")] = "",
    tensor_parallel: Annotated[
        int, typer.Option(min=0, help="Number of devices; 0: as the path says, or 1.")
    ] = 0,
    data_parallel: Annotated[
        int, typer.Option(min=1, help="Number of ranks that share their experts (MoE).")
    ] = 1,
    link_gb_per_s: Annotated[
        float, typer.Option(min=0.001, help="Bandwidth between devices in one direction, GB/s.")
    ] = 16.0,
    link_latency_us: Annotated[
        float, typer.Option(min=0, help="Fixed time of a collective operation, in microseconds.")
    ] = 20.0,
    kv_blocks: Annotated[
        int, typer.Option(min=0, help="Number of KV blocks; 0: estimated from the datasheet.")
    ] = 0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="vLLM's max_num_seqs.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="vLLM's limit.")] = 2048,
    max_model_len: Annotated[int, typer.Option(min=1, help="vLLM's max_model_len.")] = 16384,
    attention: Annotated[
        Path | None, typer.Option(help="Attention table (vidur), where it is in another folder.")
    ] = None,
) -> None:
    """Make a profile from published kernel tables."""
    from tools.profiles.imports import ImportOptions, ProfileError, import_profile, write_profile

    options = ImportOptions(
        format=table_format.value,
        path=path,
        device=device,
        model=model,
        name=name,
        provenance=provenance,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        link_gb_per_s=link_gb_per_s,
        link_latency_us=link_latency_us,
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        attention=attention,
    )
    try:
        write_profile(import_profile(options), output)
    except ProfileError as error:
        raise SystemExit(f"profile import: {error}") from error


@app.command()
def measure(
    url: Annotated[str, typer.Argument(help="Address of vLLM's server, e.g. http://host:8000.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    model: Annotated[str, typer.Option(help="Model to ask for; empty: the only one.")] = "",
    name: Annotated[
        str, typer.Option(help="Name of the profile, DEVICE/MODEL; empty: measured/MODEL.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Longest time to take.")] = 90.0,
    max_concurrency: Annotated[
        int, typer.Option(min=2, max=1024, help="Greatest number of streams at a time.")
    ] = 64,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the endpoint's key.")
    ] = "FORETELL_API_KEY",
    block_size: Annotated[
        int, typer.Option(min=0, help="Tokens of a KV block; 0: from /metrics, or 16.")
    ] = 0,
    kv_blocks: Annotated[
        int, typer.Option(min=0, help="Number of KV blocks; 0: from /metrics, or unknown.")
    ] = 0,
    max_num_seqs: Annotated[
        int, typer.Option(min=0, help="The engine's max_num_seqs; 0: 256.")
    ] = 0,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=0, help="The engine's limit; 0: 2048.")
    ] = 0,
    max_model_len: Annotated[
        int, typer.Option(min=0, help="The engine's max_model_len; 0: from /v1/models.")
    ] = 0,
) -> None:
    """Make a profile by measuring a live, idle endpoint over HTTP."""
    from tools.profiles.imports import ProfileError

    try:
        from tools.profiles.run import MeasureOptions
        from tools.profiles.show import measure_to

        options = MeasureOptions(
            url=url,
            model=model,
            name=name,
            api_key=os.environ.get(api_key_env, ""),
            seconds=seconds,
            max_concurrency=max_concurrency,
            block_size_tokens=block_size,
            kv_blocks=kv_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
        )
        measure_to(output, options)
    except ImportError as error:
        raise SystemExit(
            "profile measure needs numpy: pip install -e '.[profiles]' in the checkout"
        ) from error
    except ProfileError as error:
        raise SystemExit(f"profile measure: {error}") from error
