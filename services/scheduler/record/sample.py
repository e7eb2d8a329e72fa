"""A sample of the latest answers, for a provisioner: lengths and latencies, no text."""

from collections import deque

from foretell.services.scheduler.placing.placement import Placement
from foretell.services.scheduler.record.result import Result

ANSWERS = 64
"""The latest answers that are told."""


class Sample:
    """Online answers of this replica that came whole."""

    def __init__(self) -> None:
        self._total = 0
        self._latest: deque[tuple[int, float, int, float, float]] = deque(maxlen=ANSWERS)

    def add(self, placement: Placement, result: Result, ttft_s: float, e2e_s: float) -> None:
        """Latencies are seconds since it was placed. Only answers of one sequence have a length."""
        if placement.spec.sequences != 1 or not result.output_tokens:
            return
        self._total += 1
        prompt_tokens = result.prompt_tokens or placement.spec.prompt_tokens
        computed = max(0, prompt_tokens - (result.cached_tokens or 0))
        expected = placement.spec.length.expected_tokens
        self._latest.append((computed, expected, result.output_tokens, ttft_s, e2e_s))

    def told(self) -> dict[str, object]:
        """What `/status` says."""
        answered = [
            (computed, round(expected, 1), tokens, round(ttft_s, 4), round(e2e_s, 4))
            for computed, expected, tokens, ttft_s, e2e_s in self._latest
        ]
        return {"answered_total": self._total, "answered": answered}
