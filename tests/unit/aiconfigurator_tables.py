"""Small tables in AIConfigurator's format."""

from itertools import product

Row = dict[str, object]


def attention_rows(kv_cache: str = "bfloat16", factor: float = 1.0) -> tuple[list[Row], list[Row]]:
    """The time does not depend on the number of heads; a table from before sliding windows."""
    context: list[Row] = []
    generation: list[Row] = []
    for heads, kv_heads in ((8, 2), (4, 1), (2, 1)):
        shape = {"num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 128}
        kept = {**shape, "kv_cache_dtype": kv_cache}
        context += [
            {**kept, "batch_size": b, "isl": n, "latency": b * n * (n + 1) / 2e6 * factor}
            for b, n in product((1, 2), (16, 128, 2048))
        ]
        generation += [
            {**kept, "batch_size": b, "step": n, "latency": b * n / 1e3 * factor}
            for b, n in product((1, 16, 256), (16, 1024, 8192))
        ]
    windowed = {**generation[0], "window_size": 128, "latency": 1e9}
    return context, [*generation, windowed, {**generation[0], "num_heads": 9, "latency": 1e9}]


def all_reduce_rows() -> list[Row]:
    """A thousand numbers take a microsecond, and outside of CUDA graphs ten more."""
    return [
        {"num_gpus": n, "message_size": size, "backend": f"vllm_{how}", "latency": latency / 1e3}
        for n, size in product((2, 4), (1000, 1000_000))
        for how, latency in (("graph", size / 1e3), ("eager", 10 + size / 1e3))
    ]
