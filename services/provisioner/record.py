"""Every decision, with what it predicted, as one JSON line each, and what came of it."""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from foretell.engine.plain import engine_of, plain_engine
from foretell.provision import AnsweredRequest, Decision, Facts, Phase
from foretell.provision.regret import Moment, RegretWindow
from foretell.provision.rollout import EngineKind
from foretell.provision.strategies.foresight import TPOT_S, TTFT_S, WITHIN
from foretell.services.provisioner.lease import write_whole

MAX_BYTES = 32 << 20
"""Size at which the file is rotated; one old file is kept."""
LATEST = 100
"""Decisions that `/status` shows."""
ANSWERED = 64
"""Answers of the sample that are recorded with one decision."""
LEAD_S = 600.0
"""What came so long before a window fills the engines at its beginning."""
ENGINE_EVERY_S = 600.0
"""Pause between two times that the kind of engine is written down."""
_DECISIONS, _ENGINE = "decisions.jsonl", "engine-kind.json"


class RecordedTargets(NamedTuple):
    """What a strategy shall keep, or would if it knew targets."""

    ttft_s: float
    tpot_s: float
    within: float
    """The ratio of requests that shall be within both."""


def targets_of(parameters: Mapping[str, Any]) -> RecordedTargets:
    """Those of a strategy's parameters, and for who has none, those of `foresight`."""
    return RecordedTargets(
        float(parameters.get("ttft_s", TTFT_S)),
        float(parameters.get("tpot_s", TPOT_S)),
        float(parameters.get("within", WITHIN)),
    )


class DecisionRecord:
    """Appends to a file in a folder, and keeps the latest."""

    def __init__(self, folder: Path, targets: RecordedTargets) -> None:
        self._targets = targets
        self.latest: deque[dict[str, Any]] = deque(maxlen=LATEST)
        self._folder = folder
        self._path = folder / _DECISIONS
        self._engine_s = -inf

    def add(self, facts: Facts, decision: Decision, epoch: int) -> None:
        """Note a decision and the facts that it rests on."""
        line = {
            "at_unix_s": round(decision.at_s, 3),
            "epoch": epoch,
            "desired": decision.desired,
            "because": decision.because,
            "why": decision.why,
            "confidence": decision.confidence,
            "forecast_arrivals": decision.forecast,
            "cold_start_s": decision.cold_start_s,
            "within": decision.within,
            "age_s": round(decision.age_s, 3) if decision.age_s < 1e9 else None,
            "instances": {phase.value: len(facts.in_phase(phase)) for phase in Phase},
            "requests": facts.requests,
            "held": facts.held,
            "batches_due": len(facts.batches.due),
            "arrived": facts.arrived,
            "lengths": [(prompt, round(output, 1)) for prompt, output in facts.lengths],
            "start": decision.start,
            "take_back": decision.take_back,
            "drain": decision.drain,
            "stop": decision.stop,
        }
        self.latest.append(line)
        if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        written = json.dumps({**line, "answered": facts.answered[:ANSWERED]}) + "\n"
        with self._path.open("ab+") as file:
            if file.tell() and not _ends_a_line(self._path):
                written = "\n" + written  # a crash tore the line before
            file.write(written.encode())

    def keep_engine(self, kind: EngineKind | None, now_s: float) -> None:
        """Note what engines are like and what is wanted of them, every few minutes."""
        if kind is not None and now_s - self._engine_s > ENGINE_EVERY_S:
            content = {**plain_engine(kind.config, kind.step_time), **self._targets._asdict()}
            write_whole(self._folder / _ENGINE, json.dumps(content))
            self._engine_s = now_s


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class Recorded:
    """What a folder holds of the past. `unreadable` counts the lines that a crash has torn."""

    def __init__(self, folder: Path) -> None:
        self.unreadable = 0
        self._folder = folder

    def engine(self) -> tuple[EngineKind, RecordedTargets]:
        """What engines are like, and what was wanted of them; ValueError where it is not known."""
        path = self._folder / _ENGINE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            targets = RecordedTargets(*(float(content[name]) for name in RecordedTargets._fields))
            return EngineKind(*engine_of(content)), targets
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} tells of no engine: {error}") from error

    def span(self) -> tuple[float, float]:
        """The times of the first and of the last decision; ValueError where there is none."""
        times_s = [moment.at_s for moment, _ in self._moments()]
        if not times_s:
            raise ValueError(f"{self._folder} has no record of decisions")
        return times_s[0], times_s[-1]

    def window(self, begins_s: float, ends_s: float, after_s: float) -> RegretWindow:
        """The time between, with what came before, and `after_s` afterwards."""
        moments, answered = [], []
        for moment, answers in self._moments():
            if begins_s - LEAD_S <= moment.at_s <= ends_s + after_s:
                moments.append(moment)
            if begins_s <= moment.at_s < ends_s:
                answered += answers
        return RegretWindow(begins_s, ends_s, moments, answered)

    def _moments(self) -> Iterator[tuple[Moment, list[AnsweredRequest]]]:
        self.unreadable, latest_s = 0, -inf
        for name in (f"{_DECISIONS}.1", _DECISIONS):
            path = self._folder / name
            if not path.exists():
                continue
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        moment, answers = _moment(json.loads(line))
                    except (KeyError, TypeError, ValueError):
                        self.unreadable += 1
                        continue
                    if moment.at_s > latest_s:  # a clock that was set back repeats nothing
                        latest_s = moment.at_s
                        yield moment, answers


def _moment(line: dict[str, Any]) -> tuple[Moment, list[AnsweredRequest]]:
    instances = line["instances"]
    forecast, within = line["forecast_arrivals"], line.get("within")
    moment = Moment(
        float(line["at_unix_s"]),
        int(instances[Phase.READY.value]),
        sum(int(count) for count in instances.values()),
        int(line["arrived"]),
        None if forecast is None else float(forecast),
        float(line.get("cold_start_s", 0.0)),
        None if within is None else float(within),
    )
    answers = [
        AnsweredRequest(int(prompt), float(expected), int(output), float(ttft_s), float(e2e_s))
        for prompt, expected, output, ttft_s, e2e_s in line.get("answered", [])
    ]
    return moment, answers
