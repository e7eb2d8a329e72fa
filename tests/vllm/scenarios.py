"""Random traffic for the real scheduler: the same seed makes the same traffic for any class."""

import random
from collections.abc import Callable
from typing import Any

from foretell.model import EncoderInput, EngineConfig, content_number
from foretell.tools.verify.engine_loop import Drafting, Iteration, VerifiedLoop, unique_prompt
from foretell.tools.verify.installed import engine_config

SCARCE_BLOCKS = 40  # few enough that requests are preempted

VARIANTS = {
    "sync-fcfs": engine_config(total_blocks=SCARCE_BLOCKS),
    "sync-priority": engine_config(total_blocks=SCARCE_BLOCKS, policy="priority"),
    "async-fcfs": engine_config(total_blocks=SCARCE_BLOCKS, async_scheduling=True),
    "async-priority": engine_config(
        total_blocks=SCARCE_BLOCKS, async_scheduling=True, policy="priority"
    ),
    "sync-window": engine_config(
        total_blocks=SCARCE_BLOCKS // 2,
        kv_cache_groups=1,
        local_kv_cache_groups=1,
        sliding_window_tokens=50,
    ),
    "async-hybrid": engine_config(
        total_blocks=SCARCE_BLOCKS * 3 // 2,
        async_scheduling=True,
        kv_cache_groups=2,
        local_kv_cache_groups=1,
        attention_chunk_tokens=48,
    ),
    "sync-ngram": engine_config(total_blocks=SCARCE_BLOCKS, num_speculative_tokens=4),
    "async-eagle": engine_config(
        total_blocks=SCARCE_BLOCKS,
        async_scheduling=True,
        num_speculative_tokens=3,
        num_lookahead_tokens=3,
        drops_last_hit=True,
    ),
    "sync-images": engine_config(
        total_blocks=SCARCE_BLOCKS,
        max_num_encoder_input_tokens=100,
        encoder_cache_size=160,
        disable_chunked_mm_input=True,
    ),
    "async-images": engine_config(
        total_blocks=SCARCE_BLOCKS,
        async_scheduling=True,
        policy="priority",
        max_num_encoder_input_tokens=80,
        encoder_cache_size=120,
    ),
    "async-images-eagle": engine_config(
        total_blocks=SCARCE_BLOCKS,
        async_scheduling=True,
        num_speculative_tokens=2,
        num_lookahead_tokens=2,
        max_num_encoder_input_tokens=120,
        encoder_cache_size=160,
        num_prefill_lookahead_tokens=1,
    ),
    "sync-uncached": engine_config(total_blocks=SCARCE_BLOCKS, enable_prefix_caching=False),
}


def extra_args(index: int) -> dict[str, Any] | None:
    """What Foretell's scheduler adds to a request; every third one did not come through it."""
    if index % 3 == 0:
        return None
    return {"foretell_id": f"cluster-{index}", "foretell_predicted_tokens": index + 0.5}


def images(rng: random.Random, prompt: int, config: EngineConfig) -> list[tuple[str, EncoderInput]]:
    """Multimodal inputs within a prompt, if the engine has any; equal names have equal sizes."""
    inputs: list[tuple[str, EncoderInput]] = []
    offset = 0
    while config.max_num_encoder_input_tokens and rng.random() < 0.6:
        offset += rng.choice([0, rng.randint(0, 40)])
        number = rng.randint(0, 7)
        name, length, first = f"image {number}", 10 * number + 3, number % 3
        if offset + length > prompt:
            break
        place = content_number(name), offset, length
        inputs.append((name, EncoderInput(*place, length - first, first, length)))
        offset += length
    return inputs


def drive(
    config: EngineConfig,
    cls: type[Any] | None,
    seed: int,
    *,
    requests: int = 40,
    observe: Callable[[VerifiedLoop], None] = lambda _: None,
    after_step: Callable[[VerifiedLoop, Iteration], None] = lambda _loop, _iteration: None,
) -> list[Iteration]:
    """Serve `requests` random requests to their end: bursts, shared prefixes, aborts, EOS, pauses.

    `observe` gets the loop before the first request, `after_step` gets it after each iteration.
    """
    rng = random.Random(seed)
    loop = VerifiedLoop(config, cls)
    loop.drafting = Drafting(config, (0.9, 0.8, 0.5, 0.5), (0.7, 0.5, 0.3, 0.1))
    observe(loop)
    prefixes = [unique_prompt(f"system {i}", 64) for i in range(2)]
    iterations: list[Iteration] = []
    added = 0
    while added < requests or loop.busy:
        if added < requests and (rng.random() < 0.3 or not loop.busy):
            for _ in range(rng.randint(1, 6)):
                shared = rng.choice([[], *prefixes])
                prompt = shared + unique_prompt(f"prompt {seed} {added}", rng.randint(1, 150))
                loop.add(
                    f"r{added}",
                    prompt,
                    rng.randint(1, 60),
                    eos_after=rng.choice([0, 0, 5, 20]),
                    priority=rng.randint(-1, 2),
                    extra_args=extra_args(added),
                    inputs=images(rng, len(prompt), config),
                )
                added += 1
        if rng.random() < 0.03 and loop.scheduler.requests:
            loop.abort(rng.choice(sorted(loop.scheduler.requests)))
        iterations.append(loop.step())
        after_step(loop, iterations[-1])
        assert len(iterations) < 20_000, "the engine does not come to rest"
    loop.close()
    return iterations
