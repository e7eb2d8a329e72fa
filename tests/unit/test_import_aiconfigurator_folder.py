"""Folders with AIConfigurator's tables."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from foretell.latency.tables import profile_step_time
from foretell.model import BatchShape, GpuProfile
from foretell.tools.profiles.imports import ProfileError, import_profile
from foretell.tools.profiles.options import ImportOptions
from foretell.tools.profiles.sizes import Datasheet
from tests.unit.aiconfigurator_tables import Row, all_reduce_rows, attention_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text tables with Llama-3.1-8B's shapes, in vLLM's newest folder and in older ones."""
    device = tmp_path / "b1000_sxm"
    heads = {"num_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
    context, generation = attention_rows("fp8")
    of_llama = [[{**row, **heads} for row in rows] for rows in (context[:6], generation[:9])]
    sizes = (1024, 4096, 16384)
    gemm: list[Row] = [
        {"gemm_dtype": kind, "m": m, "n": n, "k": k, "latency": m * n * k / 1e12}
        for kind, m, n, k in product(("bfloat16", "fp8"), (1, 2048), sizes, (2048, *sizes))
    ]
    for version, name, rows in (
        ("0.24.0", "gemm_perf", gemm),
        ("0.9.1", "gemm_perf", []),
        ("0.24.0", "context_attention_perf", of_llama[0]),
        ("0.24.0", "generation_attention_perf", of_llama[1]),
        ("0.14.0", "custom_allreduce_perf", all_reduce_rows()),
        ("0.24.0", "custom_allreduce_perf", all_reduce_rows()),
    ):
        path = device / "vllm" / version / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [",".join(rows[0])] if rows else []
        path.write_text("\n".join([*lines, *(",".join(map(str, row.values())) for row in rows)]))
    return device


def step_s(profile: GpuProfile) -> float:
    """The time of a step of sixteen decoding sequences."""
    shape = BatchShape(decode_seqs=16, decode_pairs=16 * 512)
    return profile_step_time(profile).step_s(shape)


def test_a_folder_of_a_device_that_the_source_does_not_know(folder: Path) -> None:
    options = ImportOptions(folder, "Llama-3.1-8B", "B1000", tensor_parallel=2)
    typed = replace(options, weights="fp8", kv_cache="fp8")
    sheet = Datasheet(device_tflops=2000, device_gb_per_s=8000, device_gb=180)
    profile = import_profile(typed, sheet)
    assert (profile.name, profile.tensor_parallel) == ("B1000/Llama-3.1-8B", 2)
    # 85.3% of two devices' memory, less 7 GB of 8-bit layers and 2 GB of embedding and head; 65,536
    # bytes of keys and values a token.
    assert profile.total_blocks == pytest.approx((307.1e9 - 9.09e9) / 65536 / 16, rel=1e-3)
    with pytest.raises(ProfileError, match="16 and 4 heads of 128 and a KV cache of bfloat16"):
        import_profile(replace(typed, kv_cache="bfloat16"), sheet)
    (folder / "copy").mkdir()
    of_all_reduce = folder / "vllm" / "0.24.0" / "custom_allreduce_perf.txt"
    (folder / "trtllm" / "1.3.0rc20").mkdir(parents=True)
    (folder / "trtllm" / "1.3.0rc20" / of_all_reduce.name).write_text(of_all_reduce.read_text())
    assert import_profile(typed, sheet) == profile, "by default this device fuses nothing"
    fused = import_profile(replace(typed, fused_all_reduce_mib=1.0), sheet)
    assert step_s(fused) < step_s(profile)
    newest = folder / "vllm" / "0.24.0" / "gemm_perf.txt"
    (folder / "copy" / "vllm" / "0.24.0").mkdir(parents=True)
    (folder / "copy" / "vllm" / "0.24.0" / "gemm_perf.txt").write_text(newest.read_text())
    with pytest.raises(ProfileError, match="two files named gemm_perf"):
        import_profile(typed, sheet)


@pytest.mark.parametrize("suffix", ["txt", "parquet"])
def test_tables_that_were_left_in_git_lfs_are_named(folder: Path, suffix: str) -> None:
    newest = folder / "vllm" / "0.24.0" / "gemm_perf.txt"
    newest.unlink()
    newest.with_suffix(f".{suffix}").write_text("version https://git-lfs.github.com/spec/v1\n")
    options = ImportOptions(folder, "Llama-3.1-8B", "H100-SXM")
    with pytest.raises(ProfileError, match=rf"gemm_perf.{suffix} is left in Git LFS.*git lfs pull"):
        import_profile(options)


def test_types_have_to_be_named(tmp_path: Path, folder: Path) -> None:
    config = tmp_path / "Mine" / "config.json"
    config.parent.mkdir()
    sizes = '"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32'
    more = '"intermediate_size": 14336, "vocab_size": 128256, "num_key_value_heads": 8'
    config.write_text(f'{{{sizes}, {more}, "quantization_config": {{"quant_method": "fp8"}}}}')
    options = ImportOptions(folder, str(config), "H100-SXM", tensor_parallel=2)
    with pytest.raises(ProfileError, match="give --weights"):
        import_profile(options)
    with pytest.raises(ProfileError, match="does not say its bits"):
        import_profile(replace(options, weights="half"))
