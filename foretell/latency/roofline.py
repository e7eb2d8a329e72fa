"""A prior for step time from datasheets alone, for hardware that has not been measured yet.

It is linear in the batch shape, so that the same code predicts by it and calibration can start from
it. Memory time and compute time are added, where a true roofline takes the larger one. The sum is
at most twice the larger, and the default efficiencies compensate for that.
"""

from dataclasses import dataclass, replace

from foretell.latency.linear import LinearStepTime
from foretell.model import DeviceSpec, ModelSpec

_CONTEXT_TOKENS = 4096
"""The context length assumed for sliding windows, since a linear model has only one."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of datasheet rates that serving kernels reach, and overheads of a step.

    The defaults were rounded from four of the profiles that ship here, so agreement with those is
    no evidence. They are a starting point for calibration.
    """

    memory: float = 0.9
    """Share of the memory bandwidth reached when reading weights and KV."""
    compute: float = 0.85
    """Share of the FLOP/s in matrix products. It is higher than kernels reach, because compute
    partly overlaps with reading the weights, while times are added here."""
    attention: float = 0.3
    """Share of the FLOP/s in prefill attention."""
    layer_overhead_s: float = 10e-6
    """Fixed cost of a layer's small kernels."""
    step_overhead_s: float = 0.3e-3
    """Cost of a step outside the model: sampling, and the part of the host's work not hidden."""
    sequence_overhead_s: float = 1e-6
    """Cost of a sequence in a step: sampling and bookkeeping."""


def roofline_step_time(
    device: DeviceSpec, model: ModelSpec, efficiency: Efficiency | None = None
) -> LinearStepTime:
    """Step time of `model` on one `device`: seconds per unit of `latency.features.FEATURES`.

    With B the memory bandwidth and F the FLOP/s, each times its efficiency:

    - a step: `parameters * bytes_per_parameter / B` (weights are read once), and overheads;
    - a token: `2 * parameters / F` (one multiply and one add per active parameter);
    - a prefill pair: `4 * layers * heads * head_size / F_attention` (QK and PV);
    - a decode pair: `kv_bytes_per_token / B` (its key and value are read);
    - in both pairs, a layer with a sliding window counts as the window's share of 4,096 tokens.

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
    """Combine the devices of one engine into one. Communication between them is not in datasheets
    and left to calibration. ValueError for fewer than one device."""
    if tensor_parallel < 1:
        raise ValueError("a group has at least one device")
    return replace(
        device,
        flops=device.flops * tensor_parallel,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * tensor_parallel,
        memory_bytes=device.memory_bytes * tensor_parallel,
    )


def estimated_kv_blocks(device: DeviceSpec, model: ModelSpec, block_size_tokens: int = 16) -> int:
    """Estimate the KV blocks (each of one group of layers) in the memory that vLLM may use, less
    the weights.

    By default vLLM uses 90% of the memory, of which activations and the runtime take 4.7 points:
    3.76 GB of an H100 (`other_mem` of aiconfigurator's device files). The estimate is rather low,
    as datasheets give GB for GiB: an RTX 4090 had 2,588 blocks beside Llama-3.1-8B in a published
    run and an A30 1,056 beside Llama-2-7B; the estimates are 2,103 and 833.
    """
    free = (0.9 - 0.047) * device.memory_bytes - model.bytes_per_parameter * model.parameters
    return max(0, int(free / model.kv_block_bytes_per_token / block_size_tokens))
