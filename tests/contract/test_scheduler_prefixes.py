"""Schedulers tell predictors the prefixes of prompts, and log how much of them was cached."""

import json
from pathlib import Path

import pytest
from engines import answer, engines
from schedulers import running, until
from scripted_peers import Predictor, serving

from foretell.length.prefix import CHUNK_BYTES
from foretell.v1 import predictor_pb2

LONG = "What is it that we are to compute? " * 60


@pytest.mark.parametrize("policy", ["predicted_latency", "slo", "llumnix_minus"])
async def test_who_predicts_is_told_the_prompts_beginning(tmp_path: Path, policy: str) -> None:
    sidecar = Predictor()
    sidecar.predicted.cached_tokens = 256
    sidecar.completed = predictor_pb2.Seen(cached_tokens=240)
    log = tmp_path / "log"
    async with (
        engines(answer) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address], policy=policy, request_log=str(log)) as scheduler,
    ):
        for end in ("a", "b", "c"):
            await scheduler.complete(prompt=LONG + end)
        await until(lambda: len(log.read_text().splitlines()) == len(sidecar.reserved) == 3)
        prefixes = {tuple(spec.prefix) for spec in sidecar.reserved}
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert {line["cached_tokens"] for line in lines} == {240}
        if policy == "llumnix_minus":
            assert prefixes == {()}
            return
        (prefix,) = prefixes
        assert len(prefix) == len(LONG) // CHUNK_BYTES
        spec = sidecar.reserved[0]
        tokens = spec.prompt_tokens * CHUNK_BYTES / (len(LONG) + 1)
        assert spec.prefix_chunk_tokens == pytest.approx(tokens)
        assert {line["predicted_cached_tokens"] for line in lines} == {256}
        counted = {
            line.split("{")[0]: float(line.split()[-1])
            for line in (await scheduler.metrics()).splitlines()
            if "cached_prompt_tokens_total{" in line
        }
        assert counted == {
            "foretell_cached_prompt_tokens_total": 3 * 240,
            "foretell_predicted_cached_prompt_tokens_total": 3 * 256,
        }
