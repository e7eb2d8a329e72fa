"""What the plugin reads of waiting requests when there are too many to read all at every step."""

from types import SimpleNamespace
from typing import Any

import pytest

from foretell.services.backend.vllm.reading import RequestReader

pytestmark = pytest.mark.vllm


def test_a_request_that_left_and_came_back_unseen_is_read_anew() -> None:
    request: Any = SimpleNamespace(
        _output_token_ids=[],
        num_computed_tokens=0,
        num_output_placeholders=0,
        num_preemptions=0,
        status=None,
    )
    pool = SimpleNamespace(get_num_free_blocks=lambda: 7)
    scheduler = SimpleNamespace(running=[], kv_cache_manager=SimpleNamespace(block_pool=pool))
    reader = RequestReader(scheduler, lambda: [request], has_drafts=False, most=1)
    readings = [reader.read(None), reader.read(None)]
    request.num_preemptions, request._output_token_ids = 1, [5, 6]
    readings += [reader.read(None), reader.read(None)]
    told = [reading.waiting and reading.waiting.rows for reading in readings]
    assert told == [None, [(0, 0, 0, 0)], None, [(2, 0, 0, 1)]]
