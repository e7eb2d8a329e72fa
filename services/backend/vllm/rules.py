"""Finds out from its source how the installed vLLM's scheduler differs from that of 0.32.

No attribute says what a version does. So each rule is recognised by the statement that implements
it; `foretell verify-engine` detects versions that write the statement differently.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from foretell.model import SchedulerRule

_STATEMENTS = {
    SchedulerRule.OWN_PREEMPTION_GOES_ON: (
        "schedule",
        r"PRIORITY and request\.status == RequestStatus\.PREEMPTED:\s+continue",
    ),
    SchedulerRule.ADAPTERS_OF_ALL_RUNNING: (
        "schedule",
        r"lora_int_id for req in self\.running if",
    ),
    SchedulerRule.UNENCODABLE_IS_PASSED_OVER: (
        "schedule",
        r"num_new_tokens == 0:\s+skip_request\(request_queue\)\s+continue",
    ),
    SchedulerRule.WHOLE_INPUT_FROM_ITS_START: (
        "_try_schedule_encoder_inputs",
        r"num_computed_tokens <= start_pos\)? and",
    ),
    SchedulerRule.STOPS_AT_INPUT: (
        "_try_schedule_encoder_inputs",
        r"min\(num_new_tokens, start_pos - num_computed_tokens\)",
    ),
    SchedulerRule.FREES_INPUTS_WHEN_COMPUTED: (
        "_free_encoder_inputs",
        r"start_pos \+ num_tokens <= request\.num_computed_tokens",
    ),
    SchedulerRule.COMMITS_CONFIRMED: (
        "update_from_output",
        r"kv_cache_manager\.cache_blocks\(request, "
        r"request\.num_computed_tokens - request\.num_in_flight_tokens\)",
    ),
}


@cache
def installed_rules() -> int:
    """The bits of `SchedulerRule` for the installed vLLM; OSError where there is no source."""
    found = SchedulerRule(0)
    for rule, (name, statement) in _STATEMENTS.items():
        if re.search(statement, _source(getattr(Scheduler, name))):
            found |= rule
    return int(found)


@cache
def _source(function: Callable[..., Any]) -> str:
    """The source without comments, and with one statement per line."""
    return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
