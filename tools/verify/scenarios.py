"""Random scenarios of the replay format, small engines under pressure: one for each seed."""

from random import Random
from typing import Any

from foretell.engine.scenario import ReplayConfig

MODES = ("sync", "async")
DRAFTS = ("ngram", "eagle")
QUEUES = ("loras", "grammars")
IMAGES = ("images", "images and eagle")
LOCAL_ATTENTION = ("window", "full and window", "chunks", "full and chunks")


def random_scenario(seed: int, mode: str, attention: str = "full") -> dict[str, Any]:
    """Shared prefixes, continued outputs, priorities, aborts, EOS, scarce blocks, thresholds.

    `attention` is a kind of local attention, of drafts, of waiting or of multimodal inputs.
    """
    rng = Random(f"{mode} {seed}")
    block_size = rng.choice([4, 8, 16])
    longest = rng.choice([96, 256])
    batched = rng.randint(16, 128)
    seqs = rng.randint(1, 12)
    chunked = rng.random() < 0.85
    config = {
        "async": mode == "async",
        "block_size": block_size,
        # Every request fits alone, and few of them together.
        "num_blocks": 2 + longest // block_size + rng.randint(0, longest // block_size),
        "max_model_len": longest,
        "max_num_seqs": min(seqs, batched),
        "max_num_active_seqs": rng.choice([None, None, rng.randint(1, min(seqs, batched))]),
        "max_num_batched_tokens": batched if chunked else longest,
        "max_num_scheduled_tokens": rng.choice([None, None, rng.randint(8, batched)])
        if chunked
        else None,
        "long_prefill_token_threshold": rng.choice([0, 0, 8, 24]) if chunked else 0,
        "long_prefill_token_threshold_adaptive": rng.random() < 0.3,
        "policy": rng.choice(["fcfs", "priority"]),
        "enable_prefix_caching": rng.random() < 0.85,
        "enable_chunked_prefill": chunked,
        "watermark": rng.choice([0.0, 0.0, 0.05]),
        "prefill_schedule_interval": 0,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
    }
    requests: list[dict[str, Any]] = []
    for index in range(rng.randint(2, 24)):
        requests.append(_request(rng, index, requests, longest))
    if attention in DRAFTS:
        config |= _drafting(Random(f"{attention} {mode} {seed}"), attention, config)
    elif attention == "loras":
        _share_adapters(Random(f"{attention} {mode} {seed}"), config, requests)
    elif attention in IMAGES:
        return _with_images(Random(f"{attention} {mode} {seed}"), mode, seed, attention)
    elif attention == "grammars":
        _await_grammars(Random(f"{attention} {mode} {seed}"), requests)
    elif attention != "full":
        own_rng = Random(f"{attention} {mode} {seed}")
        config |= _local(own_rng, attention, block_size)
        alone = ReplayConfig.model_validate(config).engine_config().blocks_for(longest)
        config["num_blocks"] = 2 + alone + own_rng.randint(0, alone // 2)
    name = f"{mode} {seed}" if attention == "full" else f"{mode} {seed} {attention}"
    return {"name": name, "config": config, "requests": requests}


def _drafting(rng: Random, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Drafts, few or many of which are accepted, with room for at least one request."""
    tokens = rng.randint(1, 5)
    wide = 1 + tokens  # the tokens of a request that decodes
    ratios = [sorted((rng.random() for _ in range(tokens)), reverse=True) for _ in range(2)]
    threshold = config["long_prefill_token_threshold"]
    drops = kind == "eagle" and rng.random() < 0.8
    drawn = [rng.choice([ratios[0], [1.0] * tokens])]
    drawn += [rng.choice([ratios[1], [0.9] * tokens, [0.0] * tokens])]
    ahead = drops and config["enable_prefix_caching"] and rng.random() < 0.7
    return {
        "num_speculative_tokens": tokens,
        "num_lookahead_tokens": tokens if kind == "eagle" else 0,
        # If hashes look ahead, no block needs to be dropped.
        "use_eagle_block_drop": drops and not ahead,
        "num_hash_lookahead_tokens": int(ahead),
        "drafted_ratio": drawn[0],
        "accepted_ratio": drawn[1],
        # vLLM fails if a threshold cuts a step that it has padded.
        "long_prefill_token_threshold": max(threshold, wide) if threshold else 0,
        "num_blocks": config["num_blocks"] + 1,
    }


def _with_images(rng: Random, mode: str, seed: int, kind: str) -> dict[str, Any]:
    """Images that some requests share or repeat, and a cache with room for few of them."""
    scenario = random_scenario(seed, mode, "eagle" if "eagle" in kind else "full")
    config, longest = scenario["config"], scenario["config"]["max_model_len"]
    budget = config["max_num_scheduled_tokens"] or config["max_num_batched_tokens"]
    wide = max(2, min(longest // 2, rng.choice([8, 30, 60, 60])))
    config["disable_chunked_mm_input"] = rng.random() < 0.3
    if config["disable_chunked_mm_input"]:
        wide = max(2, min(wide, _least_step(config, budget) - 1))
    images = {f"image {i}": _image(rng, wide) for i in range(rng.randint(4, 12))}
    config["num_prefill_lookahead_tokens"] = ahead = int("eagle" in kind)
    # vLLM waits forever if the cache has no room for the next image when it reads ahead into it.
    least = wide * (1 + ahead)
    config["max_num_encoder_input_tokens"] = rng.randint(least, least + least // 2)
    config["encoder_cache_size"] = rng.randint(least, 2 * least)
    for request in scenario["requests"]:
        if rng.random() < 0.9:
            request["prompt"] = _illustrated(rng, request["prompt"], images, longest - 1)
    return scenario | {"name": f"{mode} {seed} {kind}", "encoder_inputs": images}


def _least_step(config: dict[str, Any], budget: int) -> int:
    """The most tokens that a request can have in a step of its own."""
    return min(budget, config["long_prefill_token_threshold"] or budget)


def _image(rng: Random, wide: int) -> dict[str, int]:
    length = max(rng.randint(1, wide), rng.randint(1, wide))
    if rng.random() < 0.5:
        return {"length": length}
    first = rng.randint(0, length - 1)
    return {"length": length, "first_embed": first, "embeds": rng.randint(1, length - first)}


def _illustrated(
    rng: Random, prompt: list[list[Any]], images: dict[str, Any], longest: int
) -> list[list[Any]]:
    """The prompt with images before some of its text, as many of them as fit whole."""
    result: list[list[Any]] = []
    left = longest
    for segment in [*prompt, [None, 0]]:
        while rng.random() < 0.5:
            name = rng.choice(sorted(images))
            if images[name]["length"] < left:
                result.append([name, images[name]["length"]])
                left -= images[name]["length"]
        result += _cut([segment], left) if segment[0] else []
        left = longest - sum(tokens for _, tokens in result)
    return result


def _share_adapters(rng: Random, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    config["max_loras"] = rng.randint(1, 3)
    for request in requests:
        request["adapter"] = rng.choice([0, rng.randint(1, 5)])


def _await_grammars(rng: Random, requests: list[dict[str, Any]]) -> None:
    for request in requests:
        if rng.random() < 0.5:
            request["grammar_step"] = request["arrival_step"] + rng.randint(1, 40)


def _local(rng: Random, attention: str, block_size: int) -> dict[str, Any]:
    """One group, as in models whose layers are all alike, or several beside full attention."""
    hybrid = attention.startswith("full and ")
    groups = {
        "full_attention_groups": rng.choice([1, 1, 2]) if hybrid else 0,
        "local_attention_groups": rng.choice([1, 1, 2, 3]) if hybrid else 1,
    }
    if attention.endswith("window"):
        return groups | {"sliding_window": rng.choice([2, 3, 8, 17, 32, 64, 200])}
    return groups | {"attention_chunk_size": block_size * rng.choice([1, 2, 4, 8])}


def _request(
    rng: Random, index: int, earlier: list[dict[str, Any]], longest: int
) -> dict[str, Any]:
    max_tokens = rng.choice([1, 2, rng.randint(1, 40), rng.randint(1, 80)])
    return {
        "id": f"r{index}",
        "arrival_step": rng.choice([0, rng.randint(0, 30), rng.randint(0, 120)]),
        "priority": rng.randint(-1, 2),
        "prompt": _prompt(rng, index, earlier, longest - 1),
        "max_tokens": max_tokens,
        "stop_after": rng.choice([None, rng.randint(1, max_tokens), rng.randint(1, 90)]),
        "abort_step": rng.choice([None, None, None, None, rng.randint(0, 150)]),
    }


def _prompt(
    rng: Random, index: int, earlier: list[dict[str, Any]], longest: int
) -> list[list[Any]]:
    kind = rng.random()
    if kind < 0.25 and earlier:  # a conversation goes on: the earlier prompt and its answer
        before = rng.choice(earlier)
        answer = [f"out:{before['id']}", rng.randint(1, before["max_tokens"])]
        segments = [*before["prompt"], answer, [f"turn {index}", rng.randint(0, 20)]]
    elif kind < 0.35 and earlier:
        segments = list(rng.choice(earlier)["prompt"])  # the same question again
    elif kind < 0.7:
        system = [rng.choice(["system a", "system b"]), rng.choice([16, 40, rng.randint(1, 90)])]
        segments = [system, [f"user {index}", rng.randint(0, 60)]]
    else:
        segments = [[f"user {index}", rng.randint(1, longest)]]
    return _cut(segments, longest)


def _cut(segments: list[list[Any]], tokens: int) -> list[list[Any]]:
    result = []
    for name, length in segments:
        result.append([name, min(length, tokens)])
        tokens -= result[-1][1]
    return result
