"""Make the GPU profiles under foretell/latency/profiles from published kernel tables.

    python -m foretell.tools.profiles.shipped DATA [--only NAME]

DATA is a folder with the tables of the sources named in each profile's provenance; they are not
part of this repository. Every profile is what `foretell profile import` makes of them.
"""

import argparse
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from foretell.tools.profiles.imports import import_profile, write_profile
from foretell.tools.profiles.options import ImportOptions

OUT = Path(str(files("foretell.latency") / "profiles"))
LLMSERVINGSIM = (
    "LLMServingSim (github casys-kaist/LLMServingSim@5daddb2, MIT), RTX PRO 6000 Blackwell Server "
    "Edition, vLLM 0.19, bf16{}: layers, LM head and sampler, and attention over (chunk, KV, "
    "sequences, KV); a second prefill chunk in a step adds its own attention time."
)
LINK = " The link between the GPUs is that of the source's own cluster file (16 GB/s, 20 us)."
NO_HOST = " No host overhead: the tables hold GPU time only."
ESTIMATED_BLOCKS = (
    " KV blocks are an estimate: 90% of the datasheet memory less 16-bit weights and 3.76 GB for "
    "everything else (aiconfigurator's h100_sxm.yaml)."
)
_PERF = Path("llmservingsim/profiler/perf/RTXPRO6000")

SOURCES = (
    ImportOptions(
        "vidur",
        Path("block/a30/Llama-2-7b-hf"),
        "A30",
        "Llama-2-7b-hf",
        "A30/Llama-2-7b-hf",
        "Kernel tables of Block (github AKafakA/vidur_opt_scheduler@20bdc49, MIT), A30, Vidur "
        "format: operators of Llama-2-7b-hf at tensor parallelism 1; GEMM rows that beat the "
        "datasheet by over 5% dropped as profiler losses. Attention was published for Qwen2-7B "
        "only and is scaled to Llama-2-7b-hf: decode at equal KV bytes, prefill by query heads "
        "(32/28). Assumption: LM head at 80% of the datasheet bandwidth." + NO_HOST + " 1,056 "
        "blocks of 16 tokens, chunk 512 and batch 48: the setting of the Block paper.",
        kv_blocks=1056,
        max_num_seqs=48,
        max_num_batched_tokens=512,
        max_model_len=4096,
        attention=Path("block/a30/Qwen2-7B/attention.csv"),
    ),
    ImportOptions(
        "vidur",
        Path("block/a30/Qwen2-7B"),
        "A30",
        "Qwen2-7B",
        "A30/Qwen2-7B",
        "Kernel tables of Block (github AKafakA/vidur_opt_scheduler@20bdc49, MIT), A30, Vidur "
        "format: operators and attention of Qwen2-7B at tensor parallelism 1; GEMM rows that beat "
        "the datasheet by over 5% dropped as profiler losses. Assumption: LM head at 80% of the "
        "datasheet bandwidth." + NO_HOST + " 7,289 blocks of 16 tokens, chunk 512 and batch 48: "
        "the setting of Block's artifact (qwen_config.json).",
        kv_blocks=7289,
        max_num_seqs=48,
        max_num_batched_tokens=512,
        max_model_len=4096,
    ),
    ImportOptions(
        "vidur",
        Path("vidur/compute/a100/meta-llama/Llama-2-7b-hf"),
        "A100-80GB",
        "Llama-2-7b-hf",
        "A100/Llama-2-7b-hf",
        "Kernel tables of Vidur (github microsoft/vidur@7d47513, MIT), A100-80GB: operators of "
        "Llama-2-7b-hf at tensor parallelism 1; GEMM rows that beat the datasheet by over 5% "
        "dropped as profiler losses. Attention (profiling history of May 2024, FlashAttention) "
        "was measured with 32 query and 4 KV heads and is scaled to 32 KV heads: decode at "
        "equal KV bytes, prefill as it is. Assumption: LM head at 80% of the datasheet "
        "bandwidth." + NO_HOST + ESTIMATED_BLOCKS,
        max_model_len=4096,
        attention=Path("vidur/profiling_history/a100_attention_2024-05.csv"),
    ),
    *(
        ImportOptions(
            "aiconfigurator",
            Path("aiconfigurator") / folder,
            device,
            "Llama-3.1-8B",
            f"{name}/Llama-3.1-8B",
            f"NVIDIA aiconfigurator-core 0.12.0 tables (Apache-2.0), {kernels}, "
            "bf16, tensor parallelism 1. GEMMs between table sizes are interpolated in n and k. "
            "Assumptions: elementwise operators at 80% of the bandwidth plus 3 us each "
            "(aiconfigurator's constants); a chunk behind computed tokens costs what a whole "
            "prompt of as many query-key pairs costs; decode attention no faster than 90% of the "
            "bandwidth (small batches of the benchmark run from L2 cache)."
            + NO_HOST
            + ESTIMATED_BLOCKS,
        )
        for name, device, folder, kernels in (
            ("A100", "A100-80GB", "a100_sxm", "A100 SXM 80 GB, vLLM 0.14 kernels"),
            ("H100", "H100-SXM", "h100_sxm", "H100 SXM, vLLM 0.24 kernels"),
        )
    ),
    ImportOptions(
        "llmservingsim",
        _PERF / "meta-llama/Llama-3.1-8B/bf16/tp1",
        "RTXPRO6000",
        "Llama-3.1-8B",
        provenance=LLMSERVINGSIM.format(", one GPU") + NO_HOST + ESTIMATED_BLOCKS,
    ),
    ImportOptions(
        "llmservingsim",
        _PERF / "Qwen/Qwen3-32B/bf16/tp2",
        "RTXPRO6000",
        "Qwen3-32B",
        provenance=LLMSERVINGSIM.format(", two GPUs at tensor parallelism 2")
        + LINK
        + NO_HOST
        + ESTIMATED_BLOCKS,
        tensor_parallel=2,
    ),
    ImportOptions(
        "llmservingsim",
        _PERF / "Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1",
        "RTXPRO6000",
        "Qwen3-30B-A3B",
        provenance=LLMSERVINGSIM.format(
            ", two data-parallel ranks of one GPU that share their experts"
        )
        + LINK
        + " The router is taken to choose experts evenly."
        + NO_HOST
        + ESTIMATED_BLOCKS,
        data_parallel=2,
    ),
)


def main() -> None:
    """Import and write the profiles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="make only the profile of this name")
    args = parser.parse_args()
    for source in SOURCES:
        name = source.name or f"{source.device}/{source.model}"
        if args.only not in ("", name):
            continue
        attention = args.data / source.attention if source.attention else None
        profile = import_profile(replace(source, path=args.data / source.path, attention=attention))
        path = OUT / f"{name.replace('/', '__')}.json"
        write_profile(profile, path)
        text = f"{name}: fit {profile.relative_residual:.1%}, {path.stat().st_size / 1e3:.1f} kB"
        print(text)  # noqa: T201  the command's output


if __name__ == "__main__":
    main()
