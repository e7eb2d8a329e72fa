"""The series that answers are counted in, looked up once for each set of labels.

`metric.labels` takes longer than to count.
"""

from collections.abc import Callable
from functools import lru_cache

from foretell.cosched.deadlines import JobClass
from foretell.telemetry import MOST_SERIES, SchedulerMetrics

Add = Callable[[float], None]
"""Counts, or observes, one value."""


class AnswerSeries:
    """Answers of one model from one engine, placed by one policy and of one class."""

    __slots__ = (
        *("e2e", "ttft", "tpot"),
        *("e2e_error", "ttft_error", "length_error"),
        *("prompt_tokens", "output_tokens", "cached_tokens", "foretold_cached_tokens"),
    )

    def __init__(
        self,
        metrics: SchedulerMetrics,
        model_name: str,
        instance_id: str,
        policy: str,
        job_class: JobClass,
        *,
        emulated: bool,
    ) -> None:
        answers = (model_name, instance_id, policy, job_class.value)
        self.e2e: Add = metrics.e2e.labels(*answers).observe
        self.ttft: Add = metrics.ttft.labels(*answers).observe
        self.tpot: Add = metrics.tpot.labels(*answers).observe
        errors = (model_name, instance_id, "emulated" if emulated else "vllm")
        self.e2e_error: Add = metrics.e2e_error.labels(*errors).observe
        self.ttft_error: Add = metrics.ttft_error.labels(*errors).observe
        self.length_error: Add = metrics.length_error.labels(*errors).observe
        tokens = (instance_id, job_class.value)
        self.prompt_tokens: Add = metrics.prompt_tokens.labels(*tokens).inc
        self.output_tokens: Add = metrics.output_tokens.labels(*tokens).inc
        self.cached_tokens: Add = metrics.cached_tokens.labels(*tokens).inc
        self.foretold_cached_tokens: Add = metrics.foretold_cached_tokens.labels(*tokens).inc


def answer_series(
    metrics: SchedulerMetrics,
) -> Callable[[str, str, str, bool, bool], AnswerSeries]:
    """A function that makes them, or finds those made before, by model, instance, policy, and
    whether requests are offline and the engine is emulated."""

    @lru_cache(MOST_SERIES)
    def find(
        model_name: str, instance_id: str, policy: str, offline: bool, emulated: bool
    ) -> AnswerSeries:
        # A class is a dear key: Python computes the hash of an Enum's member.
        job_class = JobClass.OFFLINE if offline else JobClass.ONLINE
        return AnswerSeries(metrics, model_name, instance_id, policy, job_class, emulated=emulated)

    return find
