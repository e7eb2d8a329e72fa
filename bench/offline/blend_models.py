"""The models of BlendServe's section 6.6 on A100 GPUs, as its cost model sees them."""

from dataclasses import replace

from bench.offline.blend_runs import Setting
from foretell.latency.devices import device_spec, model_spec
from foretell.model import ModelSpec
from foretell.offline.work import datasheet_work
from foretell.sim.offline import OverlappedStepTime

DEVICE = replace(
    device_spec("A100-80GB"),
    name="A100, effective",
    flops=267e12,
    memory_bandwidth_bytes_per_s=1.733e12,
)
"""The rates that the operators of the paper's table 1 reach, of 312 TFLOP/s and 2.039 TB/s."""
GPU_BYTES = 0.95 * DEVICE.memory_bytes
"""Memory of a GPU for weights and KV cache."""

# From the published config.json of Qwen/Qwen2.5-72B and deepseek-ai/deepseek-llm-67b-base;
# parameters counted from the shapes.
_QWEN_72B = ModelSpec(
    "Qwen-2.5-72B", 72.70e9, 80, 8192, 64, 8, 128, mlp_width=29568, vocabulary=152064
)
_DEEPSEEK_67B = ModelSpec(
    "DeepSeek-67B", 67.42e9, 95, 8192, 64, 8, 128, mlp_width=22016, vocabulary=102400
)

MODELS: dict[str, tuple[ModelSpec, int]] = {
    "Llama-3.1-70B": (model_spec("Llama-3.1-70B"), 8),
    "Qwen-2.5-7B": (model_spec("Qwen2-7B"), 1),  # Qwen-2.5's shapes are Qwen-2's
    "Llama-2-7B": (model_spec("Llama-2-7b-hf"), 1),
    "Qwen-2.5-72B": (_QWEN_72B, 8),
    "DeepSeek-67B": (_DEEPSEEK_67B, 8),
}
"""Models and the GPUs, tensor-parallel, that one engine has."""


def kv_tokens(model: ModelSpec, gpus: int) -> int:
    """Tokens in the KV cache beside the weights, which the GPUs share."""
    free = gpus * GPU_BYTES - model.parameters * model.bytes_per_parameter
    return int(free / model.kv_bytes_per_token)


def on(name: str, setting: Setting) -> Setting:
    """The setting with this model. Its GPUs count as one that is so many times as fast: what they
    tell each other is not modelled."""
    model, gpus = MODELS[name]
    step = OverlappedStepTime(datasheet_work(DEVICE, model, gpus))
    return replace(setting, model=name, kv_tokens=kv_tokens(model, gpus), step=step)
