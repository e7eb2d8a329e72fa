"""The vLLM metrics that dashboards show, under vLLM's names, for an emulated engine."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from foretell.engine import Sequence, Twin
from foretell.engine.batch import StepBatch

_LABELS = ("model_name", "engine")
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_TIMES = ("queue_time", "prefill_time", "decode_time")


class EngineMetrics:
    """Counts what happens to sequences, on the clock of `time.monotonic`."""

    def __init__(self, twin: Twin) -> None:
        self._registry = CollectorRegistry()
        self._twin = twin
        self._model = twin.config.model_name
        self._moments: dict[str, list[float]] = {}
        """Of each sequence: when it arrived, was admitted, and had its first token."""
        self._running = self._gauge("num_requests_running", "Requests that run.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait.")
        self._used = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use.")
        self._preempted = self._counter("num_preemptions", "Preemptions.")
        self._prompts = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generated = self._counter("generation_tokens", "Tokens of answers.")
        self._ended = Counter(
            "vllm:request_success",
            "Requests that have ended.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._prompt_lengths = self._histogram("request_prompt_tokens", _TOKENS)
        self._lengths = self._histogram("request_generation_tokens", _TOKENS)
        self._ttft = self._histogram("time_to_first_token_seconds", _SECONDS)
        self._e2e = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self._times = [self._histogram(f"request_{name}_seconds", _SECONDS) for name in _TIMES]

    def arrived(self, request_id: str) -> None:
        """Note that a sequence has been queued."""
        self._moments[request_id] = [time.monotonic()]

    def admitted(self, batch: StepBatch) -> None:
        """Note the admissions and preemptions of a step that begins."""
        self._preempted.inc(len(batch.preempted))
        for seq in batch.admitted:
            moments = self._moments.get(seq.request_id, [])
            if len(moments) == 1:  # not after a preemption
                moments.append(time.monotonic())

    def generated(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self._generated.inc(tokens)

    def first_token(self, seq: Sequence) -> None:
        """Note that a sequence has its first token."""
        moments = self._moments.get(seq.request_id, [])
        if len(moments) == 2:
            moments.append(time.monotonic())
            self._ttft.observe(moments[2] - moments[0])
            self._prompts.inc(seq.prompt_tokens)

    def finished(self, seq: Sequence) -> None:
        """Note that a sequence has its last token."""
        moments = self._moments.pop(seq.request_id, [])
        if len(moments) != 3:
            return
        moments.append(time.monotonic())
        for histogram, begun_s, over_s in zip(self._times, moments, moments[1:], strict=False):
            histogram.observe(over_s - begun_s)
        self._e2e.observe(moments[3] - moments[0])
        self._prompt_lengths.observe(seq.prompt_tokens)
        self._lengths.observe(seq.output_tokens)
        reason = "stop" if seq.row["stop_after"] < seq.row["max_tokens"] else "length"
        self._ended.labels(self._model, "0", reason).inc()

    def aborted(self, request_id: str) -> None:
        """Note that a sequence was aborted."""
        if self._moments.pop(request_id, None) is not None:
            self._ended.labels(self._model, "0", "abort").inc()

    def text(self) -> bytes:
        """Return the metrics in the text format of /metrics."""
        self._running.set(len(self._twin.running))
        self._waiting.set(len(self._twin.waiting))
        self._used.set(1 - self._twin.free_blocks / max(1, self._twin.config.total_blocks))
        return generate_latest(self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        found = Gauge(f"vllm:{name}", meaning, _LABELS, registry=self._registry)
        return found.labels(self._model, "0")

    def _counter(self, name: str, meaning: str) -> Counter:
        found = Counter(f"vllm:{name}", meaning, _LABELS, registry=self._registry)
        return found.labels(self._model, "0")

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        found = Histogram(
            f"vllm:{name}", "As vLLM's.", _LABELS, registry=self._registry, buckets=buckets
        )
        return found.labels(self._model, "0")
