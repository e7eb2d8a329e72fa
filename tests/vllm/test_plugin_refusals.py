"""Which engines the plugin refuses, and what it reports as not modelled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vllm
from vllm.config import LoRAConfig
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from foretell.services.backend import verified
from foretell.services.backend.vllm import compat, encoder
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.services.process.memory_log import LogReader, path_of
from foretell.tools.verify.installed import KNOWS_ENCODING, build_scheduler
from foretell.wire import LONGEST_APPROXIMATION
from tests.vllm.plugged import SYNC, endpoint, next_snapshot, warned
from tests.vllm.scenarios import drive

__all__ = ["endpoint", "warned"]


pytestmark = pytest.mark.vllm


def _refused(endpoint: str, warned: list[str]) -> str:
    """Why the plugin does not attach: equal in the engine's log and in what its predictor gets."""
    heard = LogReader(path_of(endpoint))
    scheduler = build_scheduler(SYNC, ForetellScheduler)
    told = next_snapshot(heard).unpredicted
    scheduler.shutdown()
    heard.close()
    assert scheduler.foretell is None
    (line,) = warned
    assert told.removeprefix("vLLM ") in line.removeprefix("Foretell: not attached to vLLM ")
    assert "serving continues without predictions" in line
    return told


@pytest.mark.parametrize("release", ["0.29.1", "unknown"])
def test_an_older_version_is_refused(
    release: str, endpoint: str, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setattr(vllm, "__version__", release)
    assert f"vLLM {release}: supported are 0.30" in _refused(endpoint, warned)


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A vLLM newer than all known ones; returns the name under which it can be verified."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(vllm, "__version__", "9.9.0")
    return verified.installation(Path(vllm.__file__).parent, "9.9.0")


def test_a_newer_version_is_refused_until_it_is_verified(
    newer: str, endpoint: str, warned: list[str]
) -> None:
    others = newer.replace("9.9.0", "9.9.1"), newer[:-1] + "x"
    for other in others:
        verified.keep(other, dict.fromkeys(verified.USES, "equal"), verified.kept_in())
    assert "run `foretell verify-engine`" in _refused(endpoint, warned)
    verified.keep(newer, dict.fromkeys(verified.USES, "equal"), verified.kept_in())
    warned.clear()
    scheduler = build_scheduler(SYNC, ForetellScheduler)
    assert scheduler.foretell is not None
    scheduler.shutdown()
    assert warned == []


@pytest.mark.parametrize("feature", ["prefix caching", "LoRA"])
def test_only_what_an_engine_uses_has_to_be_equal(
    feature: str, newer: str, endpoint: str, warned: list[str]
) -> None:
    verdicts = dict.fromkeys(verified.USES, "equal") | {feature: "different"}
    verified.keep(newer, verdicts, verified.kept_in())
    if feature == "prefix caching":
        assert "found it different: prefix caching" in _refused(endpoint, warned)
        return
    scheduler = build_scheduler(SYNC, ForetellScheduler)
    assert scheduler.foretell is not None
    scheduler.shutdown()


def test_what_is_missing_is_named(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(compat, "_SCHEDULER_ATTRIBUTES", ("running", "kv.gone"))
        patch.setattr(compat, "_REQUEST_ATTRIBUTES", ("num_gone",))
        assert drive(SYNC, ForetellScheduler, 7) == drive(SYNC, None, 7)
    (line,) = warned
    assert "it has no scheduler.kv.gone, Request.num_gone" in line


def test_engines_it_cannot_describe_are_refused(endpoint: str) -> None:
    scheduler: Any = build_scheduler(SYNC)
    assert compat.refusal(scheduler) is None
    assert compat.approximations(scheduler) == []
    scheduler.kv_cache_config.kv_cache_groups = []
    assert "no KV cache" in str(compat.refusal(scheduler))


def test_all_that_the_twin_does_not_model_is_told(endpoint: str) -> None:
    scheduler: Any = build_scheduler(SYNC)
    (group,) = scheduler.kv_cache_config.kv_cache_groups
    full, config = group.kv_cache_spec, scheduler.vllm_config
    shape = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": full.dtype}
    mamba = MambaSpec(block_size=16, shapes=((1,),), dtypes=(full.dtype,))
    window = SlidingWindowSpec(**shape, sliding_window=64)
    chunks = ChunkedLocalAttentionSpec(**shape, attention_chunk_size=64)
    one_full, one = (1, 0, 0, 0), "several kinds of local attention"
    for specs, told, groups in (
        ([window], [], (1, 1, 64, 0)),
        ([full, window, window], [], (3, 2, 64, 0)),
        ([chunks, full], [], (2, 1, 0, 64)),
        ([replace(full, sliding_window=64)], [], one_full),  # keeps the blocks of a full one
        ([mamba, full], ["state-space layers"], one_full),
        ([full, window, chunks], [one], one_full),
        ([window, replace(window, sliding_window=32)], [one], one_full),
        (
            [replace(chunks, attention_chunk_size=24)],
            ["chunks of attention that are not whole blocks"],
            one_full,
        ),
        ([full, replace(window, block_size=32)], ["KV cache blocks of several sizes"], one_full),
        ([replace(window, extra_retained_tokens=2)], ["windows kept for draft tokens"], one_full),
        ([full], [], one_full),
    ):
        scheduler.kv_cache_config.kv_cache_groups = [replace(group, kv_cache_spec=s) for s in specs]
        assert compat.approximations(scheduler) == told
        seen = compat.engine_config(scheduler)
        assert groups == (
            seen.kv_cache_groups,
            seen.local_kv_cache_groups,
            seen.sliding_window_tokens,
            seen.attention_chunk_tokens,
        )
    for name, told in (
        ("speculative_config", "speculative decoding"),
        ("kv_transfer_config", "a KV connector"),
        ("lora_config", "which LoRA adapter a new request asks for"),
        ("invented_config", "invented_config"),  # a field that a later vLLM may have
    ):
        setattr(config, name, object())
        assert compat.approximations(scheduler) == [told]
        assert compat.engine_config(scheduler).approximations == (told,)
        setattr(config, name, None)
    config.lora_config = LoRAConfig(max_loras=3)
    assert compat.engine_config(scheduler).max_loras == 3
    config.lora_config = None


@pytest.mark.skipif(not KNOWS_ENCODING, reason="another encoder cache")
def test_what_is_not_known_of_multimodal_inputs_is_told(endpoint: str) -> None:
    config = replace(SYNC, max_num_encoder_input_tokens=64, encoder_cache_size=128)
    scheduler: Any = build_scheduler(config)
    known = [
        "which images, audio or video a new request has",
        "the time that encoding images, audio or video takes",
    ]
    assert compat.approximations(scheduler) == known
    assert all(len(each) <= LONGEST_APPROXIMATION for each in known)
    seen = compat.engine_config(scheduler)
    assert (seen.max_num_encoder_input_tokens, seen.encoder_cache_size) == (64, 128)
    own = scheduler.encoder_cache_manager
    for name, value in (
        ("encoder_cache_manager", type("Other", (type(own),), {})(128)),
        ("is_encoder_decoder", True),
        ("num_prefill_lookahead", 2),
        ("planner", object()),
    ):
        before = getattr(scheduler, name, None)
        setattr(scheduler, name, value)
        assert "images, audio or video" in compat.approximations(scheduler)
        assert compat.engine_config(scheduler).max_num_encoder_input_tokens == 0
        setattr(scheduler, name, before)
    assert compat.approximations(scheduler) == known


def test_a_version_that_encodes_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        """A scheduler before 0.32, without a function that allocates the inputs of a step."""

    assert not encoder.knows_encoding(Older)
    assert encoder.knows_encoding(Scheduler) == KNOWS_ENCODING
    let_go = EncoderCacheManager.free_encoder_input

    def at_once(manager: Any, request: Any, place: int) -> None:
        manager.request_cached_ids.pop(request.request_id, None)
        let_go(manager, request, place)

    monkeypatch.setattr(EncoderCacheManager, "free_encoder_input", at_once)
    assert not encoder.knows_encoding(Scheduler)
