"""Does the plugin attach, what does the twin not model, and is a request placed?"""

from typing import Any

import httpx

from foretell.tools.check.context import Context
from foretell.tools.follower import NothingKnown, snapshot_at
from foretell.tools.harness.schedulers import running_schedulers
from foretell.workload import Arrival

_TIMEOUT_S = 60.0
_HEADERS = ("instance", "predicted-ttft-s", "predicted-e2e-s")


async def attach(context: Context, seconds: float) -> dict[str, Any]:
    """Ask each predictor about its engine, and have one request placed by the default policy."""
    engines = [await _engine(address) for address in context.engines.predictors]
    folder = context.services.folder / "attach"
    async with running_schedulers(folder, context.engines, "slo", 1) as schedulers:
        body = context.online("attach")(Arrival(0.0, 64, 16, "one"))
        body |= {"stream": False}
        del body["stream_options"]
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            answer = await client.post(f"{schedulers.urls[0]}/v1/completions", json=body)
    answer.raise_for_status()
    headers = {name: answer.headers.get(f"x-foretell-{name}") for name in _HEADERS}
    return {"engines": engines, "placed": headers | {"usage": answer.json()["usage"]}}


async def _engine(address: str) -> dict[str, Any]:
    try:
        config = (await snapshot_at(address)).config
    except NothingKnown:
        return {"attached": False}
    return {
        "attached": True,
        "engine_version": config.engine_version,
        "not_modelled": list(config.approximations),
        "async_scheduling": config.async_scheduling,
        "max_num_seqs": config.max_num_seqs,
        "total_blocks": config.total_blocks,
        "block_size_tokens": config.block_size_tokens,
        "max_num_scheduled_tokens": config.max_num_scheduled_tokens,
        "max_model_len": config.max_model_len,
    }
