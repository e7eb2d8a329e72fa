"""OpenTelemetry traces: a span for each request, and below it one for each attempt.

Names follow OpenTelemetry's conventions for generative AI. Spans hold counts and times, never a
prompt, an answer or a key. OpenTelemetry's own variables set where spans go and which are sampled;
if they name no endpoint, OpenTelemetry is not even imported.
"""

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foretell import __version__
from foretell.openai.parsing import ApiRequest
from foretell.services.scheduler.placing.attempt import Attempt

if TYPE_CHECKING:  # an extra, which need not be installed
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Environment variables, one of which names where spans go, by OTLP over HTTP."""
_CLOSE_S = 3.0
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def open_tracing(replica_id: str) -> "Tracing | None":
    """Tracing by the environment variables; None if they name no endpoint. Raises
    `SystemExit`, which says what to install."""
    if not any(map(os.environ.get, ENDPOINTS)):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise SystemExit(f"{ENDPOINTS[1]}: {error}; install the extra `tracing`") from error
    name = os.environ.get("OTEL_SERVICE_NAME", "foretell-scheduler")
    resource = Resource.create({"service.name": name, "service.instance.id": replica_id})
    provider = TracerProvider(resource=resource)
    # Its queue is bounded, and a thread of its own sends: a collector that hangs costs spans only.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class Tracing:
    """Makes the spans of one replica."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

        self._provider = provider
        self.api = trace
        self.tracer = provider.get_tracer("foretell.scheduler", __version__)
        self.propagator = tracecontext.TraceContextTextMapPropagator()
        """Reads and writes W3C's `traceparent` and `tracestate`."""

    def request(self, request: ApiRequest, headers: Mapping[str, str]) -> "RequestSpans":
        """Begin the span of a request; its parent is the client's span, if `headers` name one."""
        return RequestSpans(self, request, headers)

    def flush(self) -> None:
        """Send all spans that have ended, and wait for that."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send what is left, unless the collector takes too long."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


class RequestSpans:
    def __init__(self, tracing: Tracing, request: ApiRequest, headers: Mapping[str, str]) -> None:
        self._tracing = tracing
        path = request.endpoint.path
        operation = _OPERATIONS.get(path, path.strip("/"))
        self._name = f"{operation} {request.model}"
        self._attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": request.model,
            "foretell.request_id": request.request_id,
        }
        if request.max_tokens:
            self._attributes["gen_ai.request.max_tokens"] = request.max_tokens
        parent, kind = tracing.propagator.extract(dict(headers)), tracing.api.SpanKind.SERVER
        self._span = tracing.tracer.start_span(self._name, parent, kind, self._attributes)
        self._attempt: Span | None = None

    def attempt(self, attempt: Attempt) -> dict[str, str]:
        """Begin an attempt's span; return the headers for its engine in place of the client's."""
        attributes = {
            **self._attributes,
            "foretell.instance": attempt.instance_id,
            "foretell.policy": attempt.policy,
            "foretell.attempt": attempt.number,
            "foretell.placement_s": attempt.took_s,
        }
        if attempt.prediction is not None:
            attributes["foretell.predicted_ttft_s"] = attempt.prediction.ttft_s
            attributes["foretell.predicted_e2e_s"] = attempt.prediction.e2e_s
        tracing, api = self._tracing, self._tracing.api
        parent, kind = api.set_span_in_context(self._span), api.SpanKind.CLIENT
        span = self._attempt = tracing.tracer.start_span(self._name, parent, kind, attributes)
        carrier: dict[str, str] = {}
        tracing.propagator.inject(carrier, api.set_span_in_context(span))
        return carrier

    def attempt_ended(self, attempt: Attempt) -> None:
        span, self._attempt = self._attempt, None
        if span is None:
            return
        span.set_attribute("http.response.status_code", attempt.status)
        for name, tokens in (("input", attempt.prompt_tokens), ("output", attempt.output_tokens)):
            if tokens:
                span.set_attribute(f"gen_ai.usage.{name}_tokens", tokens)
                self._span.set_attribute(f"gen_ai.usage.{name}_tokens", tokens)
        if attempt.first_byte_unix_s:
            span.add_event("first token", timestamp=round(1e9 * attempt.first_byte_unix_s))
        if not attempt.finished:
            span.set_attribute("error.type", _error_of(attempt))
        span.end()

    def end(self, status: int) -> None:
        """End the span of the request; `status` is what the client got, 499 if it left."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._span.set_attribute("error.type", str(status))
        self._span.end()


def _error_of(attempt: Attempt) -> str:
    if attempt.status >= 400:
        return str(attempt.status)
    return "broken" if attempt.broken else "abandoned" if attempt.abandoned else "not_finished"
