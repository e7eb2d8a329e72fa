"""Datasheet numbers of devices, and the sizes of common models: the roofline's inputs.

FLOP/s are dense 16-bit tensor-core rates; rates that datasheets quote "with sparsity" are halved.
Devices that are not listed can be given by their numbers, models by their `config.json`.
"""

from collections.abc import Mapping

from foretell.model import DeviceSpec, ModelSpec

_SHEETS = """
A100-80GB                312      2039    80    A100 datasheet, SXM
A100-80GB-PCIe           312      1935    80    A100 datasheet, PCIe
A100-40GB                312      1555    40    A100 datasheet, 40 GB
A800-80GB                312      2039    80    A800 datasheet: the A100's but for NVLink
V100-32GB                125       900    32    V100 datasheet, SXM2; fp16, it has no bf16
T4                        65       320    16    T4 datasheet; fp16, it has no bf16
A10                      125       600    24    A10 datasheet
A10G                      70       600    24    A10G datasheet, as in AWS's g5
A30                      165       933    24    A30 datasheet
A40                      149.7     696    48    A40 datasheet
L4                       121       300    24    L4 datasheet, halved
L20                      119.5     864    48    L20 datasheet
L40                      181.05    864    48    L40 datasheet
L40S                     362.05    864    48    L40S datasheet
H100-SXM                 989.5    3350    80    H100 datasheet, SXM, halved
H100-PCIe                756.5    2000    80    H100 datasheet, PCIe, halved
H100-NVL                 835.5    3900    94    H100 datasheet, NVL, halved
H800-SXM                 989.5    3350    80    H800 datasheet: the H100's but for NVLink
H20                      148      4000    96    H20 datasheet
H200-SXM                 989.5    4800   141    H200 datasheet, SXM, halved
H200-NVL                 835.5    4800   141    H200 datasheet, NVL, halved
GH200-96GB               989.5    4000    96    GH200 datasheet, HBM3, halved
GH200-144GB              989.5    4900   144    GH200 datasheet, HBM3e, halved
B200                    2250      8000   180    HGX B200 datasheet, an eighth, halved; DGX B200
GB200                   2500      8000   186    GB200 NVL72 datasheet, a 72nd, halved
B300                    2250      8000   288    DGX B300 datasheet, an eighth, halved
GB300                   2500      8000   288    GB300 NVL72 datasheet, a 72nd, halved
RTXPRO6000               503.8    1597    96    RTX PRO 6000 Blackwell Server Edition datasheet
RTXPRO6000-Workstation   503.8    1792    96    RTX Blackwell PRO architecture whitepaper
RTX6000Ada               364.2     960    48    RTX 6000 Ada datasheet, a quarter of sparse fp8
RTX5000Ada               261.1     576    32    RTX 5000 Ada datasheet, a quarter of sparse fp8
RTXA6000                 154.8     768    48    GA102 whitepaper, fp32 accumulate
RTXA5000                 111.1     768    24    RTX A5000 datasheet, halved
RTXA4000                  76.7     448    16    RTX A4000 datasheet, halved
RTX3090                   71       936    24    GA102 whitepaper, fp32 accumulate
RTX4080                   97.5     717    16    AD102 whitepaper, fp32 accumulate
RTX4090                  165.2    1008    24    AD102 whitepaper, fp32 accumulate
RTX5080                  112.6     960    16    RTX Blackwell whitepaper, fp32 accumulate
RTX5090                  209.5    1792    32    RTX Blackwell whitepaper, fp32 accumulate
MI210                    181      1638    64    Instinct MI210 datasheet
MI250X                   383      3277   128    Instinct MI250X datasheet, both dies
MI300A                   980.6    5300   128    Instinct MI300A datasheet
MI300X                  1307.4    5300   192    Instinct MI300X datasheet
MI325X                  1307.4    6000   256    Instinct MI325X datasheet
MI350X                  2306.9    8000   288    Instinct MI350X datasheet
MI355X                  2516.6    8000   288    Instinct MI355X datasheet
RX7900XTX                122.8     960    24    Radeon RX 7900 XTX datasheet
Gaudi2                   432      2450    96    Intel's Gaudi 2 whitepaper
Gaudi3                  1835      3700   128    Intel's Gaudi 3 whitepaper
"""
"""Lines of name, dense 16-bit TFLOP/s, GB/s, GB, source; the usual one of a family comes first."""


def _device(line: str) -> DeviceSpec:
    name, tflops, gb_per_s, gb = line.split()[:4]
    return DeviceSpec(name, float(tflops) * 1e12, float(gb_per_s) * 1e9, float(gb) * 1e9)


DEVICES: Mapping[str, DeviceSpec] = {
    spec.name: spec for spec in map(_device, _SHEETS.strip().splitlines())
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
        ModelSpec(
            "gpt-oss-120b",
            116.829e9,
            36,
            2880,
            64,
            8,
            64,
            bytes_per_parameter=0.5586,  # experts in MXFP4, all else in 16 bits
            experts=128,
            experts_per_token=4,
            active_parameters=5.711e9,
            mlp_width=2880,
            vocabulary=201088,
            windowed_layers=18,
            window_tokens=128,
        ),
        ModelSpec(
            "MiniMax-M2.5",
            228.689e9,
            62,
            3072,
            48,
            8,
            128,
            bytes_per_parameter=1.0054,  # blockwise 8 bits; embedding and head in 16 bits
            experts=256,
            experts_per_token=8,
            active_parameters=11.030e9,
            mlp_width=1536,
            vocabulary=200064,
            norms_across_heads=True,
        ),
    )
}


def device_spec(name: str) -> DeviceSpec:
    """The datasheet of device `name`; a KeyError lists the known names."""
    if name not in DEVICES:
        raise KeyError(f"unknown device {name!r}; known: {', '.join(sorted(DEVICES))}")
    return DEVICES[name]


def model_spec(name: str) -> ModelSpec:
    """The sizes of model `name`; a KeyError lists the known names."""
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; known: {', '.join(sorted(MODELS))}")
    return MODELS[name]
