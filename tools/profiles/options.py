"""What a GPU profile is made from, as options of commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What to import, and what the tables do not say."""

    path: Annotated[Path, typer.Argument(help="Folder of aiconfigurator's tables of a device.")]
    model: Annotated[str, typer.Option(help="Model, or its config.json.")]
    device: Annotated[
        str, typer.Option(help="Device, known or not, e.g. RTXPRO6000; empty: the one in the path.")
    ] = ""
    name: Annotated[str, typer.Option(help="Name of the profile; empty: DEVICE/MODEL.")] = ""
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Number of devices.")] = 1
    expert_parallel: Annotated[
        bool,
        typer.Option("--expert-parallel", help="Each device has some of the experts as a whole."),
    ] = False
    weights: Annotated[
        str,
        typer.Option(
            help="Type of the layers' weights, as the tables name it, e.g. fp8_block; "
            "empty: bfloat16."
        ),
    ] = ""
    kv_cache: Annotated[
        str,
        typer.Option(
            help="Type of the KV cache, likewise; empty: as the model's configuration says."
        ),
    ] = ""
    fused_all_reduce_mib: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest all-reduce that vLLM fuses with the norm behind it, MiB; 0: none; "
            "without the option: as it does by default.",
        ),
    ] = None
    kv_blocks: Annotated[
        int,
        typer.Option(min=0, help="Number of KV blocks; 0: estimated from the datasheet, if any."),
    ] = 0
    max_num_seqs: Annotated[int, typer.Option(min=1, help="vLLM's max_num_seqs.")] = 256
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="vLLM's limit.")] = 2048
    max_model_len: Annotated[int, typer.Option(min=1, help="vLLM's max_model_len.")] = 16384
