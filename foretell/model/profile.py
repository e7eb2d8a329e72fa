"""The speed of a GPU with a model, as data."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from foretell.model.snapshot import EngineConfig

PROFILE_VERSION = 3
"""Version of the file format. Files without a version are version 1, which has no tables; version 2
has no groups of layers."""
_NEARLY = 1.5  # times the layers of the rarer kind


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device's datasheet: dense 16-bit FLOP/s, memory bandwidth and capacity."""

    name: str
    flops: float
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The figures of a decoder-only model that a roofline needs."""

    name: str
    parameters: float
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_size: int
    bytes_per_parameter: float = 2.0
    """Mean size of a weight, in bytes."""
    experts: int = 0
    """Experts of a mixture-of-experts layer; 0: a dense model."""
    experts_per_token: int = 0
    active_parameters: float = 0.0
    """Parameters that each token is multiplied with; 0: all of them."""
    mlp_width: int = 0
    """Inner width of a gated MLP, or of one expert; 0: not known."""
    vocabulary: int = 0
    """Rows of the LM head; 0: not known."""
    kv_latent_size: int = 0
    """Numbers that a layer caches per token with multi-head latent attention; 0: it caches the keys
    and values of all KV heads."""
    kv_bytes_per_number: float = 2.0
    """Size of a number in the KV cache, in bytes; 1 where it is 8-bit."""
    windowed_layers: int = 0
    """Layers that attend only to a sliding window; the others attend to everything."""
    window_tokens: int = 0
    """Tokens that these layers attend to, the one that is computed included."""
    norms_across_heads: bool = False
    """Whether queries and keys are normalised over all heads together, as in MiniMax-M2: with
    tensor parallelism, devices must then add up their sums."""

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of the keys and values of one token, over all layers."""
        if self.kv_latent_size:
            return self.layers * self.kv_latent_size * self.kv_bytes_per_number
        return 2.0 * self.layers * self.kv_heads * self.head_size * self.kv_bytes_per_number

    @property
    def expert_parameters(self) -> float:
        """Parameters of all experts; 0 for a dense model."""
        if self.experts <= self.experts_per_token:
            return 0.0
        idle = self.experts - self.experts_per_token  # experts that a token does not use
        return (self.parameters - self.active_parameters) / idle * self.experts

    @property
    def layers_of_a_group(self) -> int:
        """Layers whose keys and values one KV block holds: the number of layers of the rarer kind
        of attention, or of the commoner one if that is less than `_NEARLY` times as many (vLLM's
        `_get_kv_cache_groups_uniform_page_size`, 0.32)."""
        full, windowed = self.layers - self.windowed_layers, self.windowed_layers
        few, many = sorted((full or windowed, windowed or full))
        return many if many < _NEARLY * few else few

    @property
    def kv_block_bytes_per_token(self) -> float:
        """Bytes of one token in a KV block, which holds the layers of one group."""
        return self.kv_bytes_per_token / self.layers * self.layers_of_a_group

    @property
    def local_kv_cache_groups(self) -> int:
        """Groups of layers that attend only to a sliding window."""
        return ceil(self.windowed_layers / self.layers_of_a_group)

    @property
    def kv_cache_groups(self) -> int:
        """All groups of layers; a block of tokens takes one KV block of each."""
        full = self.layers - self.windowed_layers
        return ceil(full / self.layers_of_a_group) + self.local_kv_cache_groups

    def layers_attending(self, context_tokens: int) -> float:
        """How many full-attention layers attend to as many tokens of such a context in total."""
        share = min(1.0, self.window_tokens / context_tokens)
        return self.layers - self.windowed_layers * (1.0 - share)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds over one variable; `x` ascends, as long as `seconds`."""

    x: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Seconds over several variables: `seconds` in row-major order of the ascending `axes`."""

    axes: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepTables:
    """Measured GPU time of a step's parts, each summed over all layers (`latency.tables`)."""

    tokens: Curve
    """Everything but attention and the head, over the tokens of the step."""
    sequences: Curve
    """LM head and sampler, over the sequences of the step."""
    prefill: Grid
    """Attention of one chunk over (chunk tokens, computed tokens)."""
    decode: Grid
    """Attention of a batch of decodes over (sequences, mean context)."""
    mixed: Grid | None = None
    """Attention of one chunk with decodes over all four variables; None: `prefill` + `decode`."""
    ranks: Curve | None = None
    """What data-parallel ranks do together, over the mean tokens of a rank; None: nothing."""
    graph_sizes: tuple[int, ...] = ()
    """Token counts that CUDA graphs were captured for, ascending: smaller steps are padded."""
    overhead_s: float = 0.0
    """Seconds that the host adds to every step."""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """Step time of one model on one device: linear in the batch shape, and tables where known."""

    name: str
    """`DEVICE/MODEL`, e.g. `A30/Llama-2-7b-hf`."""
    coefficients_s: tuple[float, ...]
    """One per feature of `latency.features.FEATURES`; seconds per unit of the feature."""
    relative_residual: float
    """Typical |error| / step time of the fit that made the coefficients."""
    provenance: str
    block_size_tokens: int = 16
    total_blocks: int = 0
    """KV blocks that fit beside the weights; 0 where the source does not say."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    tensor_parallel: int = 1
    """Devices that share every layer."""
    data_parallel: int = 1
    """Engines that step together because they share their experts."""
    kv_cache_groups: int = 1
    """Groups of layers; a block of tokens takes one KV block of each."""
    local_kv_cache_groups: int = 0
    """The groups that attend only to a sliding window of `sliding_window_tokens`."""
    sliding_window_tokens: int = 0
    tables: StepTables | None = None

    def engine(self, **settings: Any) -> EngineConfig:
        """An engine with the profile's limits, overridden by those of `settings` that are not 0.

        ValueError if neither says how many KV blocks it has.
        """
        limits: dict[str, Any] = {
            "model_name": self.name,
            "block_size_tokens": self.block_size_tokens,
            "total_blocks": self.total_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_scheduled_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "kv_cache_groups": self.kv_cache_groups,
            "local_kv_cache_groups": self.local_kv_cache_groups,
            "sliding_window_tokens": self.sliding_window_tokens,
        }
        given = {name: value for name, value in settings.items() if value or name not in limits}
        config = EngineConfig(**(limits | given))
        if not config.total_blocks:
            raise ValueError(f"the profile {self.name} does not say how many KV blocks there are")
        return config
