"""`foretell profile`: make a profile of published tables, or by measuring a live endpoint."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="GPU profiles: how fast one model runs on one device (docs/tools.md).",
)


class TableFormat(StrEnum):
    """Whose tables `foretell profile import` reads."""

    LLMSERVINGSIM = "llmservingsim"
    VIDUR = "vidur"
    AICONFIGURATOR = "aiconfigurator"


@app.command("import")
def profile_import(
    path: Annotated[Path, typer.Argument(help="Folder of the tables.")],
    table_format: Annotated[TableFormat, typer.Option("--format", help="Whose tables they are.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    device: Annotated[
        str, typer.Option(help="Device, e.g. RTXPRO6000; empty: as the path names it.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Model, e.g. Llama-3.1-8B; empty: as the path names it.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the profile; empty: DEVICE/MODEL.")] = "",
    provenance: Annotated[str, typer.Option(help="Where the tables are from.")] = "",
    tensor_parallel: Annotated[
        int, typer.Option(min=0, help="Devices the tables are for; 0: as the path says, or 1.")
    ] = 0,
    data_parallel: Annotated[
        int, typer.Option(min=1, help="Ranks that share their experts (MoE).")
    ] = 1,
    link_gb_per_s: Annotated[
        float, typer.Option(min=0.001, help="Between devices, one direction (LLMServingSim's).")
    ] = 16.0,
    link_latency_us: Annotated[
        float, typer.Option(min=0, help="Fixed time of a collective (LLMServingSim's).")
    ] = 20.0,
    kv_blocks: Annotated[
        int, typer.Option(min=0, help="KV blocks; 0: estimated from the datasheet.")
    ] = 0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As in vLLM.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="As in vLLM.")] = 2048,
    max_model_len: Annotated[int, typer.Option(min=1, help="As in vLLM.")] = 16384,
    attention: Annotated[
        Path | None, typer.Option(help="Attention table, if elsewhere (vidur).")
    ] = None,
) -> None:
    """Make a profile from published kernel tables (docs/tools.md)."""
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
    url: Annotated[str, typer.Argument(help="Of vLLM's OpenAI server, e.g. http://host:8000.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    model: Annotated[str, typer.Option(help="Model to ask for; empty: the only one.")] = "",
    name: Annotated[
        str, typer.Option(help="Name of the profile, DEVICE/MODEL; empty: measured/MODEL.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Time to take at most.")] = 90.0,
    max_concurrency: Annotated[
        int, typer.Option(min=2, max=1024, help="Streams at once, at most.")
    ] = 64,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the endpoint's key.")
    ] = "FORETELL_API_KEY",
    block_size: Annotated[
        int, typer.Option(min=0, help="Tokens of a KV block; 0: as /metrics says, or 16.")
    ] = 0,
    kv_blocks: Annotated[
        int, typer.Option(min=0, help="KV blocks; 0: as /metrics says, or unknown.")
    ] = 0,
    max_num_seqs: Annotated[int, typer.Option(min=0, help="The engine's; 0: 256.")] = 0,
    max_num_batched_tokens: Annotated[int, typer.Option(min=0, help="The engine's; 0: 2048.")] = 0,
    max_model_len: Annotated[
        int, typer.Option(min=0, help="The engine's; 0: as /v1/models says.")
    ] = 0,
) -> None:
    """Make a profile by measuring a live, idle endpoint over HTTP (docs/tools.md)."""
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
        raise SystemExit("profile measure needs numpy: pip install 'foretell[profiles]'") from error
    except ProfileError as error:
        raise SystemExit(f"profile measure: {error}") from error
