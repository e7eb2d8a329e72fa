"""Make the GPU profiles under foretell/latency/profiles from measured kernel tables.

    python bench/fit_profiles.py DATA [--write] [--only NAME]

DATA is a folder with the tables of the sources named in each profile's provenance. Kernel times
are summed to step times over a grid of batches that the profile's own limits (KV blocks, token
budget, sequences) allow; the six features of `foretell.latency.linear` are then fitted to them by
non-negative least squares of the relative error. Needs numpy, and pyarrow for parquet sources.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from step_tables import Batch, StepTables, relative_fit
from step_tables.aiconfigurator import h100_llama31_8b
from step_tables.llmservingsim import rtxpro6000_llama31_8b
from step_tables.real_run import LLMSERVINGSIM_RTX, compare
from step_tables.vidur import block_a30_llama2_7b, vidur_a100_llama2_7b

from foretell.latency.devices import device_spec, model_spec
from foretell.latency.linear import LinearStepTime, features
from foretell.latency.roofline import roofline_step_time
from foretell.model import GpuProfile

OUT = Path(__file__).resolve().parent.parent / "foretell" / "latency" / "profiles"
DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 160, 192, 224, 256)
CONTEXTS = (50, 100, 200, 400, 700, 1000, 1500, 2000, 3000, 4000)
CHUNKS = (1, 4, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
COMPUTED = (0, 256, 1024, 2048, 3500)


@dataclass(frozen=True, slots=True)
class Source:
    """One profile to make: where its tables are and the limits of its engine."""

    profile: GpuProfile
    device: str
    tables: Callable[[Path], StepTables]
    real_run: str = ""
    """A per-request run to compare with, where one was published."""


ESTIMATED_BLOCKS = (
    " KV blocks are an estimate: 90% of the datasheet memory less 16-bit weights and 3.76 GB for "
    "everything else (aiconfigurator's h100_sxm.yaml)."
)
NO_HOST = " No host overhead: the tables hold GPU time only."


def estimated_blocks(device: str, model: str, block_size_tokens: int = 16) -> int:
    """KV blocks left beside the weights, as `ESTIMATED_BLOCKS` says."""
    spec = model_spec(model)
    free = 0.9 * device_spec(device).memory_bytes - 2.0 * spec.parameters - 3.76e9
    return int(free / spec.kv_bytes_per_token / block_size_tokens)


def unfitted(name: str, provenance: str, blocks: int, **limits: int) -> GpuProfile:
    """A profile whose coefficients are still to be fitted."""
    return GpuProfile(name, (), 0.0, provenance, total_blocks=blocks, **limits)


SOURCES = (
    Source(
        unfitted(
            "A30/Llama-2-7b-hf",
            "Kernel tables of Block (github AKafakA/vidur_opt_scheduler@20bdc49, MIT), A30, Vidur "
            "format: operators of Llama-2-7b-hf at tensor parallelism 1; GEMM rows that beat the "
            "datasheet by over 5% dropped as profiler losses. Attention was published for Qwen2-7B "
            "only and is scaled to Llama-2-7b-hf: decode at equal KV bytes, prefill by query heads "
            "(32/28). Assumption: LM head at 80% of the datasheet bandwidth." + NO_HOST + " 1,056 "
            "blocks of 16 tokens, chunk 512 and batch 48: the setting of the Block paper.",
            1056,
            max_num_seqs=48,
            max_num_batched_tokens=512,
        ),
        "A30",
        block_a30_llama2_7b,
    ),
    Source(
        unfitted(
            "A100/Llama-2-7b-hf",
            "Kernel tables of Vidur (github microsoft/vidur@7d47513, MIT), A100-80GB: operators of "
            "Llama-2-7b-hf at tensor parallelism 1; GEMM rows that beat the datasheet by over 5% "
            "dropped as profiler losses. Attention (profiling history of May 2024, FlashAttention) "
            "was measured with 32 query and 4 KV heads and is scaled to 32 KV heads: decode at "
            "equal KV bytes, prefill as it is. Assumption: LM head at 80% of the datasheet "
            "bandwidth." + NO_HOST + ESTIMATED_BLOCKS,
            estimated_blocks("A100-80GB", "Llama-2-7b-hf"),
        ),
        "A100-80GB",
        vidur_a100_llama2_7b,
    ),
    Source(
        unfitted(
            "RTXPRO6000/Llama-3.1-8B",
            "LLMServingSim (github casys-kaist/LLMServingSim@5daddb2, MIT), RTX PRO 6000 Blackwell "
            "Server Edition, vLLM 0.19, bf16, tensor parallelism 1: layers, LM head and sampler, "
            "and attention over (chunk, KV, sequences, KV); a second prefill chunk in a step adds "
            "its own attention time." + NO_HOST + ESTIMATED_BLOCKS,
            estimated_blocks("RTXPRO6000", "Llama-3.1-8B"),
            max_model_len=16384,
        ),
        "RTXPRO6000",
        rtxpro6000_llama31_8b,
        LLMSERVINGSIM_RTX,
    ),
    Source(
        unfitted(
            "H100/Llama-3.1-8B",
            "NVIDIA aiconfigurator-core 0.12.0 tables (Apache-2.0), H100 SXM, vLLM 0.24 kernels, "
            "bf16, tensor parallelism 1. GEMMs between table sizes are interpolated in n and k. "
            "Assumptions: elementwise operators at 80% of the bandwidth plus 3 us each "
            "(aiconfigurator's constants); a chunk behind computed tokens costs what a whole "
            "prompt of as many query-key pairs costs; decode attention no faster than 90% of the "
            "bandwidth (small batches of the benchmark run from L2 cache)."
            + NO_HOST
            + ESTIMATED_BLOCKS,
            estimated_blocks("H100-SXM", "Llama-3.1-8B"),
            max_model_len=16384,
        ),
        "H100-SXM",
        h100_llama31_8b,
    ),
)


def decode_batches(profile: GpuProfile) -> Iterator[Batch]:
    """Pure decode steps that fit the profile's KV memory."""
    capacity = profile.total_blocks * profile.block_size_tokens or float("inf")
    for n in DECODES:
        for context in CONTEXTS:
            if n <= profile.max_num_seqs and n * (context + 1) <= capacity:
                yield Batch(decodes=n, context=context)


def batches(profile: GpuProfile) -> Iterator[Batch]:
    """Every step of the grid: decode, prefill (one or two chunks), and both mixed."""
    decodes = list(decode_batches(profile))
    yield from decodes
    capacity = profile.total_blocks * profile.block_size_tokens or float("inf")
    for chunk in CHUNKS:
        for computed in COMPUTED:
            if chunk + computed > profile.max_model_len:
                continue
            prefills: list[tuple[tuple[int, int], ...]] = [((chunk, computed),)]
            if chunk >= 64:
                prefills.append(((chunk // 2, 0), (chunk - chunk // 2, computed)))
            for chunks in prefills:
                for other in (Batch(), *decodes[::3]):
                    batch = Batch(chunks, other.decodes, other.context)
                    held = other.decodes * other.context + sum(q + c for q, c in chunks)
                    fits = batch.tokens <= profile.max_num_batched_tokens
                    if fits and held <= capacity and batch.sequences <= profile.max_num_seqs:
                        yield batch


def kind(batch: Batch) -> str:
    """The row of the residual table that `batch` belongs to."""
    if not batch.prefills:
        return "decode"
    return "mixed" if batch.decodes else "prefill"


def fit(source: Source, data: Path) -> GpuProfile:
    """Fit one profile and print its residuals by kind of step."""
    tables = source.tables(data)
    grid = list(batches(source.profile))
    seconds = np.array([tables.step_s(b) for b in grid])
    x = np.array([features(b.shape) for b in grid])
    # Each kind of step counts alike, however many grid points it has.
    kinds = np.array([kind(b) for b in grid])
    weight = np.array([1.0 / np.sqrt((kinds == k).mean()) for k in kinds])
    coefficients = relative_fit(x, seconds, weight)
    error = np.abs(x @ coefficients - seconds) / seconds
    print(f"\n{source.profile.name}: {len(grid)} steps")
    print(f"  {'steps':8} {'n':>6} {'median':>8} {'p90':>8}   seconds from .. to")
    for name in ("decode", "prefill", "mixed", "all"):
        mask = np.ones(len(grid), bool) if name == "all" else kinds == name
        p50, p90 = np.percentile(error[mask], (50, 90))
        low, high = seconds[mask].min(), seconds[mask].max()
        print(f"  {name:8} {mask.sum():6} {p50:8.1%} {p90:8.1%}   {low:.4f} .. {high:.4f}")
    model = model_spec(source.profile.name.split("/")[1])
    prior = np.array(roofline_step_time(device_spec(source.device), model).coefficients_s)
    prior_error = np.abs(x @ prior - seconds) / seconds
    print(f"  roofline {len(grid):6} {np.median(prior_error):8.1%}", end=" ")
    print(f"{np.percentile(prior_error, 90):8.1%}   {np.array2string(prior, precision=4)}")
    p50, p90 = np.percentile(error, (50, 90))
    fitted = asdict(source.profile)
    fitted["coefficients_s"] = tuple(float(f"{c:.5g}") for c in coefficients)
    fitted["relative_residual"] = round(float(p50), 4)
    fitted["provenance"] += (
        f" Fit over {len(grid)} steps: relative error {p50:.1%} median, {p90:.1%} p90. "
        f"Command: python bench/fit_profiles.py DATA --only {source.profile.name} --write"
    )
    profile = GpuProfile(**fitted)
    if source.real_run:
        print(" ", compare(data / source.real_run, LinearStepTime(profile.coefficients_s)))
    return profile


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="write the profiles into the package")
    parser.add_argument("--only", default="", help="fit only the profile of this name")
    args = parser.parse_args()
    for source in SOURCES:
        if args.only in ("", source.profile.name):
            profile = fit(source, args.data)
            print("  coefficients_s", profile.coefficients_s)
            if args.write:
                path = OUT / f"{profile.name.replace('/', '__')}.json"
                path.write_text(json.dumps(asdict(profile), indent=2) + "\n")


if __name__ == "__main__":
    main()
