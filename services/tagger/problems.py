"""Checks of requests. Each returns the first problem, which names the field; empty: none."""

from foretell.v1 import tagger_pb2

MAX_OBSERVATIONS = 4096
"""Most observations in one call of Observe."""

MAX_REQUESTS = 256
"""Most requests in one call of TagMany."""

_MAX_NAME_CHARS = 256
_MAX_TOKENS = 1 << 24


def tag_problem(request: tagger_pb2.TagRequest) -> str:
    """What is wrong with a request to be estimated; empty: nothing."""
    if not request.prompt and not request.prompt_tokens:
        return "prompt, prompt_tokens: one of them is needed"
    if request.hint_tokens > _MAX_TOKENS:
        return f"hint_tokens: at most {_MAX_TOKENS}, got {request.hint_tokens}"
    if 0 < request.max_tokens < request.min_tokens:
        return f"min_tokens: at most max_tokens, {request.max_tokens}, got {request.min_tokens}"
    return _name_problem(request.model_name)


def batch_problem(batch: tagger_pb2.TagBatch) -> str:
    """What is wrong with a batch as a whole; empty: nothing."""
    if len(batch.requests) > MAX_REQUESTS:
        return f"requests: at most {MAX_REQUESTS}, got {len(batch.requests)}"
    return ""


def observe_problem(request: tagger_pb2.ObserveRequest) -> str:
    """What is wrong with observations to learn from; empty: nothing."""
    if len(request.observations) > MAX_OBSERVATIONS:
        return f"observations: at most {MAX_OBSERVATIONS}, got {len(request.observations)}"
    for index, observation in enumerate(request.observations):
        problem = _name_problem(observation.model_name)
        if observation.output_tokens > _MAX_TOKENS:
            problem = f"output_tokens: at most {_MAX_TOKENS}, got {observation.output_tokens}"
        if problem:
            return f"observations[{index}].{problem}"
    return ""


def _name_problem(model_name: str) -> str:
    if 0 < len(model_name) <= _MAX_NAME_CHARS:
        return ""
    return f"model_name: 1 to {_MAX_NAME_CHARS} characters, got {len(model_name)}"
