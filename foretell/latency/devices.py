"""Datasheet numbers of devices, and the sizes of common models: the roofline's inputs.

FLOP/s are dense 16-bit (bf16) tensor-core rates: datasheets that quote "with sparsity" are halved.
"""

from collections.abc import Mapping

from foretell.model import DeviceSpec, ModelSpec

_GB = 1e9

DEVICES: Mapping[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        # NVIDIA A30 Tensor Core GPU datasheet: 165 TFLOPS bf16, 933 GB/s, 24 GB HBM2.
        DeviceSpec("A30", 165e12, 933e9, 24 * _GB),
        # NVIDIA A100 datasheet, 80GB SXM: 312 TFLOPS bf16, 2,039 GB/s HBM2e.
        DeviceSpec("A100-80GB", 312e12, 2039e9, 80 * _GB),
        # NVIDIA H100 datasheet, SXM: 1,979 TFLOPS bf16 with sparsity, 3.35 TB/s HBM3, 80 GB.
        DeviceSpec("H100-SXM", 989.5e12, 3350e9, 80 * _GB),
        # NVIDIA H200 datasheet, SXM: H100's compute, 4.8 TB/s HBM3e, 141 GB.
        DeviceSpec("H200-SXM", 989.5e12, 4800e9, 141 * _GB),
        # NVIDIA L4 datasheet: 242 TFLOPS bf16 with sparsity, 300 GB/s GDDR6, 24 GB.
        DeviceSpec("L4", 121e12, 300e9, 24 * _GB),
        # NVIDIA L40S datasheet: 362.05 TFLOPS bf16 dense, 864 GB/s GDDR6, 48 GB.
        DeviceSpec("L40S", 362.05e12, 864e9, 48 * _GB),
        # NVIDIA HGX B200 datasheet, an eighth of its eight GPUs: 36 PFLOPS bf16 with sparsity;
        # DGX B200: 64 TB/s and 1,440 GB HBM3e.
        DeviceSpec("B200", 2250e12, 8000e9, 180 * _GB),
        # NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet: 1,597 GB/s GDDR7, 96 GB;
        # RTX Blackwell PRO architecture whitepaper: 503.8 TFLOPS bf16 dense (fp32 accumulate).
        DeviceSpec("RTXPRO6000", 503.8e12, 1597e9, 96 * _GB),
        # AMD Instinct MI300X datasheet: 1,307.4 TFLOPS bf16 dense, 5.3 TB/s HBM3, 192 GB.
        DeviceSpec("MI300X", 1307.4e12, 5300e9, 192 * _GB),
    )
}

# From each model's published config.json; parameters counted from its shapes.
MODELS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            "Llama-2-7b-hf", 6.738e9, 32, 4096, 32, 32, 128, mlp_width=11008, vocabulary=32000
        ),
        ModelSpec(
            "Llama-3.1-8B", 8.030e9, 32, 4096, 32, 8, 128, mlp_width=14336, vocabulary=128256
        ),
        ModelSpec(
            "Llama-3.1-70B", 70.554e9, 80, 8192, 64, 8, 128, mlp_width=28672, vocabulary=128256
        ),
        ModelSpec("Qwen2-7B", 7.616e9, 28, 3584, 28, 4, 128, mlp_width=18944, vocabulary=152064),
        ModelSpec("Qwen3-32B", 32.762e9, 64, 5120, 64, 8, 128, mlp_width=25600, vocabulary=151936),
        ModelSpec(
            "Qwen3-30B-A3B",
            30.532e9,
            48,
            2048,
            32,
            4,
            128,
            experts=128,
            experts_per_token=8,
            active_parameters=3.353e9,
            mlp_width=768,
            vocabulary=151936,
        ),
    )
}


def device_spec(name: str) -> DeviceSpec:
    """The datasheet of `name`; KeyError that lists the known names otherwise."""
    if name not in DEVICES:
        raise KeyError(f"unknown device {name!r}; known: {', '.join(sorted(DEVICES))}")
    return DEVICES[name]


def model_spec(name: str) -> ModelSpec:
    """The sizes of model `name`; KeyError that lists the known names otherwise."""
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; known: {', '.join(sorted(MODELS))}")
    return MODELS[name]
