"""A file of decisions with their predictions, one JSON line each."""

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

from foretell.provision import Facts, InstancePhase, ProvisionDecision
from foretell.services.provisioner.tuning import TUNING

_DECISIONS = "decisions.jsonl"


class DecisionRecord:
    """Appends decisions to a file in a folder, and keeps the latest in memory."""

    def __init__(self, folder: Path) -> None:
        self.latest: deque[dict[str, Any]] = deque(maxlen=TUNING.latest_decisions)
        self._path = folder / _DECISIONS

    def add(self, facts: Facts, decision: ProvisionDecision, epoch: int) -> None:
        """Record a decision and the facts behind it."""
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
            "instances": {phase.value: len(facts.in_phase(phase)) for phase in InstancePhase},
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
        if self._path.exists() and self._path.stat().st_size > TUNING.record_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        written = json.dumps(line) + "\n"
        with self._path.open("ab+") as file:
            if file.tell() and not _ends_a_line(self._path):
                written = "\n" + written  # a crash left the line before incomplete
            file.write(written.encode())


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
