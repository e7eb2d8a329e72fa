"""`python -m foretell.services.scheduler.console.imagine` answers one what-if: JSON in, JSON
out.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from math import inf
from random import Random
from typing import Any

from foretell.config import build_policy
from foretell.engine.plain import engine_of
from foretell.model import LengthEstimate, Slo
from foretell.services.process.runtime import die_with_parent
from foretell.sim.what_if import Change, KnownEngine, Met, Situation, outcome, what_if
from foretell.workload import Arrival

_NICE = 5  # placing requests comes first
_SEED = 0


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, what is foretold of the cluster as it is, and of the changed one."""
    question = asked["question"]
    situation = Situation(
        [KnownEngine(*engine_of(each)) for each in asked["engines"]],
        [_arrival(each) for each in asked["arrivals"]],
        asked["span_s"],
    )

    def foretold(change: Change) -> dict[str, Any]:
        policy = partial(build_policy, asked["policy"], asked["parameters"])
        scale = float(question["replicas"])
        return asdict(what_if(situation, change, policy, Random(_SEED), scale=scale))

    change = Change(question["instances"], question["max_num_seqs"], question["traffic"])
    try:
        return {
            "measured": _measured(asked),
            "as_it_is": foretold(Change()),
            "changed": foretold(change),
        }
    except ValueError as error:
        return {"error": str(error)}


def _measured(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answers to the same requests; a share of the traffic, as this replica saw it."""
    found = [Met(slo=_slo(each), **each["met"]) for each in asked["arrivals"] if each["met"]]
    return asdict(outcome(found, asked["span_s"])) if found else None


def _arrival(told: Mapping[str, Any]) -> Arrival:
    expected, quantiles, source = told["length"]
    return Arrival(
        told["t_s"],
        told["prompt_tokens"],
        told["output_tokens"],
        "",
        priority=told["priority"],
        slo=_slo(told),
        length=LengthEstimate(expected, tuple((q, tokens) for q, tokens in quantiles), source),
    )


def _slo(told: Mapping[str, Any]) -> Slo:
    return Slo(
        inf if told["ttft_s"] is None else told["ttft_s"],
        inf if told["tpot_s"] is None else told["tpot_s"],
    )


def main() -> None:
    die_with_parent()
    os.nice(_NICE)
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
