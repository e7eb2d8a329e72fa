"""A scheduler's log as JSON lines: which request each line is about, and what is never logged."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from engines import answer, close_before_headers, engines
from schedulers import running
from scripted_peers import Predictor, serving

from foretell.services.process.logs import JsonLines, about, all_about
from foretell.services.scheduler.placing.placer import Placer

PROMPT, KEY = "what nobody else may read", "key-of-a-client"


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [json.loads(JsonLines().format(record)) for record in caplog.records]


async def test_lines_about_a_request_have_its_id_and_neither_prompt_nor_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    caplog.set_level(logging.DEBUG)
    headers = {"x-request-id": "mine-1", "authorization": f"Bearer {KEY}"}
    async with (
        engines(close_before_headers, answer) as two,
        serving(Predictor(e2e_s=2.0)) as soon,
        serving(Predictor(e2e_s=4.0)) as late,
        running(
            tmp_path, two, [soon, late], policy="predicted_latency", api_keys=KEY, headers=headers
        ) as scheduler,
    ):
        assert (await scheduler.complete(prompt=PROMPT)).status_code == 200
        monkeypatch.setattr(Placer, "place", defect)
        assert (await scheduler.complete(prompt=PROMPT)).status_code == 500
    lines = logged(caplog)
    (attempt,) = [line for line in lines if "attempt 1 on engine-0 failed" in line["message"]]
    (failed,) = [line for line in lines if "RuntimeError: a defect" in line.get("exception", "")]
    assert attempt["request_id"] == failed["request_id"] == "mine-1"
    assert (attempt["level"], failed["level"]) == ("warning", "error")
    text = json.dumps(lines)
    assert PROMPT not in text
    assert KEY not in text


def test_what_is_written_inside_is_about_the_request() -> None:
    logger = logging.getLogger("services.any")
    with all_about("r-1"):
        line = JsonLines().format(_record(logger, "inside"))
        named = JsonLines().format(_record(logger, "named", extra=about("r-2")))
    outside = JsonLines().format(_record(logger, "two\nlines"))
    assert json.loads(line)["request_id"] == "r-1"
    assert json.loads(named)["request_id"] == "r-2"
    assert "request_id" not in json.loads(outside)
    assert len(outside.splitlines()) == 1


def _record(
    logger: logging.Logger, message: str, extra: Mapping[str, str] | None = None
) -> logging.LogRecord:
    return logger.makeRecord(logger.name, logging.INFO, __file__, 1, message, (), None, extra=extra)
