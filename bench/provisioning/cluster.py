"""The engines of the benchmarks of provisioning: those of the Block paper."""

from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig
from foretell.sim import SimInstanceConfig

PROFILE = "A30/Llama-2-7b-hf"
ENGINE = EngineConfig(
    model_name=PROFILE,
    block_size_tokens=16,
    total_blocks=1056,
    max_num_seqs=48,
    max_num_scheduled_tokens=512,
    max_model_len=4096,
)


def engines(count: int) -> tuple[SimInstanceConfig, ...]:
    """`count` equal engines."""
    return (SimInstanceConfig(ENGINE, profile_step_time(load_profile(PROFILE))),) * count
