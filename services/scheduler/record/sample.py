"""A sample of the latest answers, for a provisioner: lengths and latencies, no text."""

from collections import deque

from foretell.services.scheduler.placing.attempt import Attempt

ANSWERS = 64
"""The latest answers that are told."""


class Sample:
    """Online answers of this replica that came whole."""

    def __init__(self) -> None:
        self._total = 0
        self._latest: deque[tuple[int, float, int, float, float]] = deque(maxlen=ANSWERS)

    def add(self, attempt: Attempt) -> None:
        """Only answers of one sequence have a length."""
        spec, tokens = attempt.spec, attempt.output_tokens
        if spec.sequences != 1 or not tokens:
            return
        self._total += 1
        prompt_tokens = attempt.prompt_tokens or spec.prompt_tokens
        computed = max(0, prompt_tokens - (attempt.cached_tokens or 0))
        latencies = attempt.ttft_s, attempt.e2e_s
        self._latest.append((computed, spec.length.expected_tokens, tokens, *latencies))

    def told(self) -> dict[str, object]:
        """What `/status` says."""
        answered = [
            (computed, round(expected, 1), tokens, round(ttft_s, 4), round(e2e_s, 4))
            for computed, expected, tokens, ttft_s, e2e_s in self._latest
        ]
        return {"answered_total": self._total, "answered": answered}
