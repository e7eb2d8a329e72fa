"""Speed of a GPU with a model, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device's datasheet: dense 16-bit FLOP/s, memory bandwidth and capacity."""

    name: str
    flops: float
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a roofline needs to know of a decoder-only model."""

    name: str
    parameters: float
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_size: int
    bytes_per_parameter: float = 2.0

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values that one token keeps, all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_size * self.bytes_per_parameter


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """Step time of one model on one device, linear in the batch shape (`latency.linear`)."""

    name: str
    """`DEVICE/MODEL`, e.g. `A30/Llama-2-7b-hf`."""
    coefficients_s: tuple[float, ...]
    """One per feature of `latency.linear.FEATURES`; seconds per unit of the feature."""
    relative_residual: float
    """Typical |error| / step time of the fit that made the coefficients."""
    provenance: str
    block_size_tokens: int = 16
    total_blocks: int = 0
    """KV blocks that fit beside the weights; 0 where the source does not say."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
