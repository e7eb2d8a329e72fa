"""Flags and variables of the engines under test, and what requests tell them."""

from collections.abc import Mapping

LENGTH_KEY = "secret_len"
"""The entry of `vllm_xargs` that holds the length of an answer, which only the engine reads."""
METER_KEY = "foretell_meter"
"""The entry of `vllm_xargs` that begins a measurement of the plugin's cost (1) or ends it (0)."""
METER_FILE = "FORETELL_CHECK_METER_FILE"
"""The variable that names the file into which an engine writes such a measurement."""
_IN_ENGINE = "foretell.tools.check.in_engine"
METERED = f"{_IN_ENGINE}.MeteredScheduler"
CO_SCHEDULER = f"{_IN_ENGINE}.CheckedCoScheduler"

CPU_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # With this, vLLM's CPU platform keeps the executor in the engine's process, as on one GPU.
    # Otherwise engine and worker each spin on a core while they wait for each other.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Variables of all engines on a CPU, not only of checks: one thread, a small KV cache, no hub."""
CPU_ARGS = (
    "--enforce-eager --dtype float32 --distributed-executor-backend uni --max-model-len 2048 "
    "--max-num-seqs 8 --max-num-batched-tokens 512 --num-gpu-blocks-override 200"
)
GPU_ENVIRONMENT: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1"}
GPU_ARGS = "--max-num-seqs 128"
DUMMY_ARGS = "--load-format dummy --max-model-len 8192"
EVERYWHERE = (
    "--disable-uvicorn-access-log --enable-prompt-tokens-details --scheduling-policy priority"
)
"""Flags of all engines. Requests of the same priority are served in the order of arrival."""
