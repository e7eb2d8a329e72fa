"""Traces reach a collector by OTLP, and engines continue them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engines import MODEL, answer, engines, status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from schedulers import running, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                sent = ExportTraceServiceRequest.FromString(await reader.readexactly(length))
                for resource in sent.resource_spans:
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    def named(self, kind: str) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SpanKind.Value(kind)]


@asynccontextmanager
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    collector = Collector()
    server = await asyncio.start_server(collector.take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    async with server:
        yield collector


def attributes(span: Span) -> dict[str, object]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


async def test_a_span_for_the_request_and_one_for_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "r1"}
    async with (
        collecting(monkeypatch) as collector,
        engines(status(500), answer) as both,
        running(tmp_path, both, health_interval_s=1000.0) as scheduler,
    ):
        await scheduler.complete(headers=headers, prompt="a secret", max_tokens=7)
        await until(lambda: len(collector.spans) == 3)
        (request,) = collector.named("SPAN_KIND_SERVER")
        failed, good = collector.named("SPAN_KIND_CLIENT")
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        assert request.parent_span_id.hex() == PARENT
        assert {failed.parent_span_id, good.parent_span_id} == {request.span_id}
        assert request.name == f"text_completion {MODEL}"
        told = attributes(request)
        assert told["gen_ai.request.model"] == MODEL
        assert told["gen_ai.request.max_tokens"] == 7
        assert told["gen_ai.usage.output_tokens"] > 0
        assert told["http.response.status_code"] == 200
        assert told["foretell.request_id"] == "r1"
        assert attributes(failed)["error.type"] == "500"
        assert attributes(good)["foretell.instance"] == "engine-1"
        assert attributes(good)["foretell.attempt"] == 2
        sent = both[1].received[-1].headers["traceparent"]
        assert sent == f"00-{TRACE}-{good.span_id.hex()}-01"
        assert "secret" not in str(collector.spans)


async def test_a_collector_that_is_gone_costs_nobody_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    async with engines(answer) as one, running(tmp_path, one) as scheduler:
        for _ in range(3):
            assert (await scheduler.complete()).status_code == 200


async def test_without_a_collector_traces_pass_through(tmp_path: Path) -> None:
    parent = f"00-{TRACE}-{PARENT}-01"
    async with engines(answer) as one, running(tmp_path, one) as scheduler:
        await scheduler.complete(headers={"traceparent": parent})
        assert one[0].received[-1].headers["traceparent"] == parent
