"""Continues answers that another engine has begun.

A request with `foretell_output_ids` in its `vllm_xargs` brings the output tokens that its client
already has. They count as its output from the start, as if it had been preempted after them:
limits, `min_tokens`, stop tokens and grammars include them, and its first step computes them with
the prompt. The API server gets all of them with the first new token, so text, stop strings and
usage are as if all tokens had been generated here. Log probabilities of tokens that the request
brings are zeros: the caller has the true ones.

If a request asks for several choices, `foretell_output_lengths` says how many ids belong to each.

vLLM's first model runner takes no output with a new request. There the worker gets these tokens as
part of the prompt, so presence and frequency penalties do not count them.
"""

import copy
import logging
from typing import Any

import numpy as np

_log = logging.getLogger("vllm.foretell")

OUTPUT_IDS = "foretell_output_ids"
"""The field of `vllm_xargs`: the ids of the output tokens so far."""
OUTPUT_LENGTHS = "foretell_output_lengths"
"""The field of `vllm_xargs`: how many of these each choice has; absent where there is one."""


class Resuming:
    """A mixin, placed before one of vLLM's schedulers. It ignores requests without the field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._brought: dict[str, list[int]] = {}
        """Output tokens of requests that were not scheduled yet, by request id."""
        self._untold: dict[str, list[int]] = {}
        """Output tokens that the API server has not received yet, by request id."""
        self._as_prompt: dict[str, int] = {}
        """Number of output tokens that the worker has as part of the prompt, by request id."""
        self._vocabulary = _vocabulary_of(self)

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        given = _output_ids_of(request)
        if given is not None and _are_output_ids(given, request, self._vocabulary):
            request.append_output_token_ids(given)
            request.prefill_stats = None  # what is cached may be more than the prompt
            self._brought[request.request_id] = given
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self._as_prompt:
            self._correct(output)
        if self._brought:
            for new in output.scheduled_new_reqs:
                if ids := self._brought.pop(new.req_id, None):
                    self._untold[new.req_id] = ids
                    self._begin(new, self.requests[new.req_id], ids)  # type: ignore[attr-defined]
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        result = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        if self._untold:
            for outputs in result.values():
                for output in outputs.outputs:
                    if ids := self._untold.pop(output.request_id, None):
                        output.new_token_ids = [*ids, *output.new_token_ids]
                        if output.new_logprobs is not None:
                            output.new_logprobs = _with_zeros(ids, output.new_logprobs)
        return result

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        result = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        for waiting in (self._brought, self._untold):
            for request_id in [each for each in waiting if each not in self.requests]:  # type: ignore[attr-defined]
                del waiting[request_id]
        return result

    def _begin(self, new: Any, request: Any, ids: list[int]) -> None:
        """Complete what the worker gets for a request's first step: it must know all tokens."""
        accepted = self.structured_output_manager.accept_tokens(request, ids)  # type: ignore[attr-defined]
        if not accepted:
            _log.warning("Foretell: the grammar of %s refuses its output.", request.request_id)
        if getattr(new, "prefill_token_ids", None) is not None:
            return  # vLLM's second model runner gets output tokens separately
        new.prompt_token_ids = list(request.all_token_ids)
        self._as_prompt[new.req_id] = len(ids)
        params = new.sampling_params = copy.copy(new.sampling_params)
        params.min_tokens = max(0, params.min_tokens - len(ids))
        if params.seed is not None:
            params.seed += len(ids)  # the same draws again would give the same tokens again

    def _correct(self, output: Any) -> None:
        """Subtract from the worker's output counts what it has as part of the prompt."""
        for request_id in output.finished_req_ids:
            self._as_prompt.pop(request_id, None)
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            if request_id in self._as_prompt:
                cached.num_output_tokens[index] -= self._as_prompt[request_id]


def _vocabulary_of(scheduler: Any) -> int:
    """The size of the model's vocabulary; 0 if unknown: then no answer can be continued."""
    try:
        return int(scheduler.vllm_config.model_config.get_vocab_size())
    except Exception:  # another version of vLLM: the engine must start anyway
        _log.warning("Foretell: no answers of other engines can go on here.", exc_info=True)
        return 0


def _output_ids_of(request: Any) -> Any:
    """The output ids that the request brings, not yet checked; None: none."""
    params = request.sampling_params
    extra = (params.extra_args if params else None) or {}
    ids, lengths = extra.get(OUTPUT_IDS), extra.get(OUTPUT_LENGTHS)
    if lengths is None or not isinstance(ids, list):
        return ids
    # One of several choices: vLLM puts its number before the id that all of them share.
    number = request.request_id.partition("_")[0]
    known = isinstance(lengths, list) and all(type(n) is int and n >= 0 for n in lengths)
    if not known or not number.isdecimal() or int(number) >= len(lengths):
        return None
    begin = sum(lengths[: int(number)])
    return ids[begin : begin + lengths[int(number)]]


def _with_zeros(ids: list[int], logprobs: Any) -> Any:
    """`logprobs` of an output, after rows for the tokens that came with its request."""
    rows = len(ids)
    token_ids = np.repeat(logprobs.logprob_token_ids[:1], rows, axis=0)
    token_ids[:, 0] = ids
    width = logprobs.logprobs.shape[1]
    return logprobs._replace(
        logprob_token_ids=np.concatenate([token_ids, logprobs.logprob_token_ids]),
        logprobs=np.concatenate(
            [np.zeros((rows, width), logprobs.logprobs.dtype), logprobs.logprobs]
        ),
        sampled_token_ranks=np.concatenate(
            [np.ones(rows, logprobs.sampled_token_ranks.dtype), logprobs.sampled_token_ranks]
        ),
    )


def _are_output_ids(given: object, request: Any, vocabulary: int) -> bool:
    """Whether the field holds token ids that leave something to generate.

    An id that the model does not have would crash the engine.
    """
    return (
        isinstance(given, list)
        and request.prompt_embeds is None
        and 0 < len(given) < request.max_tokens
        and all(type(each) is int and 0 <= each < vocabulary for each in given)
    )
