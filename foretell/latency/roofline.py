"""A prior for step time from datasheets alone, for hardware nobody has measured yet.

Linear in the batch shape, so that the same code predicts from it and calibration starts from it.
Memory time and compute time are added where a true roofline takes the larger: the sum is at most
twice the larger, and the default efficiencies make up for it.
"""

from dataclasses import dataclass, replace

from foretell.latency.linear import LinearStepTime
from foretell.model import DeviceSpec, ModelSpec

_CONTEXT_TOKENS = 4096
"""The context for which sliding windows are counted: a linear model knows no other."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the datasheet that serving kernels reach, and what a step costs besides.

    The defaults were rounded from the four profiles that ship here, so agreement with those is no
    evidence; they are a starting point for calibration.
    """

    memory: float = 0.9
    """Share of the memory bandwidth reached when reading weights and KV."""
    compute: float = 0.85
    """Share of the FLOP/s in matrix products; higher than kernels reach, as part of the compute
    hides behind reading the weights, while times are added here."""
    attention: float = 0.3
    """Share of the FLOP/s in prefill attention."""
    layer_overhead_s: float = 10e-6
    """Fixed cost of a layer's small kernels."""
    step_overhead_s: float = 0.3e-3
    """Cost of a step outside the model: sampling and what of the host is not hidden."""
    sequence_overhead_s: float = 1e-6
    """Cost of a sequence in a step: sampling and bookkeeping."""


def roofline_step_time(
    device: DeviceSpec, model: ModelSpec, efficiency: Efficiency | None = None
) -> LinearStepTime:
    """Step time of `model` on one `device`, seconds per feature of `latency.features.FEATURES`.

    With B the memory bandwidth and F the FLOP/s, each times its efficiency:

    - step: weights are read once, `parameters * bytes_per_parameter / B`, and overheads;
    - a token: `2 * parameters / F` (one multiply and one add per parameter it is used with);
    - a prefill pair: `4 * layers * heads * head_size / F_attention` (QK and PV);
    - a decode pair: `kv_bytes_per_token / B` (its key and value are read);
    - of both, layers with a sliding window have the share that it is of 4,096 tokens.

    Source: the roofline of Williams et al. (2009) with the operation counts of Kaplan et al.
    (2020), section 2.1. Raises ValueError for sizes or efficiencies that are not positive.
    """
    share = efficiency or Efficiency()
    if min(share.memory, share.compute, share.attention) <= 0:
        raise ValueError("efficiencies must be positive")
    if min(device.flops, device.memory_bandwidth_bytes_per_s, model.parameters) <= 0:
        raise ValueError("device rates and model parameters must be positive")
    bandwidth = device.memory_bandwidth_bytes_per_s * share.memory
    token_s = 2.0 * (model.active_parameters or model.parameters) / (device.flops * share.compute)
    attending = model.layers_attending(_CONTEXT_TOKENS)
    attention_flops = 4.0 * attending * model.attention_heads * model.head_size
    step_s = (
        model.parameters * model.bytes_per_parameter / bandwidth
        + model.layers * share.layer_overhead_s
        + share.step_overhead_s
    )
    return LinearStepTime(
        (
            step_s,
            token_s,
            attention_flops / (device.flops * share.attention),
            share.sequence_overhead_s,
            token_s + share.sequence_overhead_s,
            attending / model.layers * model.kv_bytes_per_token / bandwidth,
        )
    )


def joint(device: DeviceSpec, tensor_parallel: int) -> DeviceSpec:
    """The devices of one engine as one. What the links between them cost is in no datasheet and
    left to calibration. ValueError for fewer than one device."""
    if tensor_parallel < 1:
        raise ValueError("a group has at least one device")
    return replace(
        device,
        flops=device.flops * tensor_parallel,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * tensor_parallel,
        memory_bytes=device.memory_bytes * tensor_parallel,
    )


def estimated_kv_blocks(device: DeviceSpec, model: ModelSpec, block_size_tokens: int = 16) -> int:
    """KV blocks, each of one group of layers, beside the weights: what vLLM may use of the memory,
    less the weights.

    Of the 90% that it takes by default activations and the runtime have 4.7 points: 3.76 GB of an
    H100 (`other_mem` of aiconfigurator's device files). It errs towards few: an RTX 4090 had 2,588
    blocks beside Llama-3.1-8B in a published run and an A30 1,056 beside Llama-2-7B, where this
    says 2,103 and 833, as datasheets give GB for GiB.
    """
    free = (0.9 - 0.047) * device.memory_bytes - model.bytes_per_parameter * model.parameters
    return max(0, int(free / model.kv_block_bytes_per_token / block_size_tokens))
