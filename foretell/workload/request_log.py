"""A scheduler's request log as a trace: the requests to a cluster, and when they came.

Only attempts whose whole answer was relayed count, because the lengths of others are not known. An
attempt is logged when it ends, so its arrival is that time less the time to place and serve it.
"""

import json
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from foretell.model import LengthEstimate, Slo
from foretell.workload.stream import Arrival
from foretell.workload.traces import Trace

MARK = "time_unix_s"
"""A key that every line of a request log has, and no line of another trace."""


def parse_request_log(lines: Iterable[str]) -> Trace:
    """The finished requests of one model; ValueError for none, or for those of several models."""
    requests: list[Arrival] = []
    models: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["finished"] and row["output_tokens"] and row["prompt_tokens"]:
                models.add(row["model_name"])
                requests += _sequences(row)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {error!r}") from error
    if not requests:
        raise ValueError("no request in it was answered to its end, with its tokens counted")
    if len(models) > 1:
        raise ValueError(
            f"requests to several models, {', '.join(sorted(models))}: keep the lines of the one "
            "that the engines serve"
        )
    requests.sort(key=lambda request: request.t_s)
    return Trace(tuple(requests), timed=True)


def _sequences(row: dict[str, Any]) -> Iterator[Arrival]:
    """An arrival for each sequence of a request; its tokens are logged as a sum over them."""
    sequences = int(row["sequences"])
    prompt = int(row["prompt_tokens"])
    if sequences > 1:  # of one prompt or several; the estimate is of the longest
        prompt = min(prompt, int(row["predicted_prompt_tokens"]))
    for _ in range(sequences):
        yield Arrival(
            row["time_unix_s"] - (row["e2e_s"] or 0.0) - row["placement_s"],
            max(1, prompt),
            max(1, int(row["output_tokens"]) // sequences),
            "",
            priority=int(row["priority"]),
            slo=Slo(row["ttft_target_s"] or inf, row["tpot_target_s"] or inf),
            length=LengthEstimate(float(row["predicted_output_tokens"]), (), row["length_source"]),
        )
