"""The flags that `foretell tune` recommends are vLLM's own."""

import pytest
from vllm.config import CacheConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.tune.changes import MORE_MEMORY_UTILIZATION, propose
from foretell.tools.tune.options import MEMORY_UTILIZATION, Memory
from foretell.workload import Arrival, Trace

pytestmark = pytest.mark.vllm


def test_vllm_takes_every_flag() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    engines = (EngineOptions("A30/Llama-2-7b-hf", 1),)
    options = SimulateOptions("none", engines, prefix_caching=False)
    trace = Trace((Arrival(0.0, 1000, 10, "", prefix=(1,)),), timed=True)
    proposals = propose(options, trace, Memory(), frozenset())
    tried = {change.kind for change in proposals.changes}
    assert not proposals.left_out.keys() - {"policy"}
    for change in proposals.changes:
        flags = [word for flag in change.engine_flags for word in flag.split()]
        parsed = parser.parse_args(flags)
        if change.kind == "gpu-memory-utilization":
            assert parsed.gpu_memory_utilization == MORE_MEMORY_UTILIZATION
    assert "watermark" in tried


def test_the_default_share_of_memory_is_vllms() -> None:
    assert CacheConfig().gpu_memory_utilization == MEMORY_UTILIZATION
