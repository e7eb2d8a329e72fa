"""`foretell profile measure` against an engine that tells its steps, and against what is none."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from emulated_engine import running_engine
from typer.testing import CliRunner
from virtual_time import VirtualTimeLoop

from foretell.cli.main import app
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape, GpuProfile
from foretell.model.batch import prefill_pairs
from foretell.services.backend.emulator import __main__ as emulator
from foretell.services.backend.emulator import driver
from foretell.tools.profiles import endpoint, run, session
from foretell.tools.profiles.imports import ProfileError, profile_of, write_profile
from foretell.tools.profiles.options import MeasureOptions
from foretell.tools.profiles.run import Measurement, measure

SPEED_S = (3e-3, 20e-6, 10e-9, 0.5e-3, 0.15e-3, 1e-6)
LINEAR = GpuProfile(
    name="Z80/basic",
    coefficients_s=SPEED_S,
    relative_residual=0.0,
    provenance="made up",
    total_blocks=1000,
    max_num_seqs=32,
    max_num_batched_tokens=512,
    max_model_len=1024,
)


def test_the_profile_is_that_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    async def measured() -> Measurement:
        async with running_engine(tmp_path, speedup=1.0, noise_ratio=0.02) as engine:
            options = MeasureOptions(
                f"{engine.url}/v1/",
                name="Z80/measured",
                rounds=1,
                max_concurrency=8,
                kv_blocks=1000,
                max_num_batched_tokens=512,
            )
            return await measure(options, said.append)

    monkeypatch.setattr(emulator, "load_profile", lambda _: LINEAR)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        for module in (driver, endpoint, run, session):
            monkeypatch.setattr(module, "time", loop.as_time_module())
        found = runner.run(measured())
    assert said[0] == "warming up"
    assert {w.kind for w in found.windows} == {"lone", "beside", "decode"}
    model, truth = LinearStepTime(found.profile.coefficients_s), LinearStepTime(SPEED_S)
    for shape in (
        BatchShape(decode_seqs=1, decode_pairs=50),
        BatchShape(decode_seqs=16, decode_pairs=16 * 50),
        BatchShape(decode_seqs=16, decode_pairs=16 * 700),
        BatchShape(1, 16, prefill_pairs(16, 0)),
        BatchShape(1, 512, prefill_pairs(512, 0)),
        BatchShape(1, 500, prefill_pairs(500, 500), 4, 4 * 300),
    ):
        assert model.step_s(shape) == pytest.approx(truth.step_s(shape), rel=0.05), shape
    check_profile(found, tmp_path / "made.json")


def check_profile(found: Measurement, path: Path) -> None:
    """It is written and read back, and says where it comes from."""
    write_profile(found.profile, path)
    made = profile_of(str(path))
    assert made == found.profile
    assert (made.name, made.total_blocks, made.max_num_batched_tokens) == (
        "Z80/measured",
        1000,
        512,
    )
    assert made.max_model_len == 1024  # as the endpoint says
    assert "an emulated engine" in made.provenance
    assert f"{len(found.windows)} windows" in made.provenance
    assert made.relative_residual < 0.05


async def test_too_little_time_is_said(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        with pytest.raises(ProfileError, match=r"more --seconds than 0\.3"):
            await measure(MeasureOptions(engine.url, seconds=0.3))
        with pytest.raises(ProfileError, match="no model 'other' is served; there are: Llama"):
            await measure(MeasureOptions(engine.url, model="other"))


CARD = {"id": "m", "max_model_len": 512}
BUSY = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'
TWO_ENGINES = BUSY + BUSY.replace('"0"', '"1"')


class Scripted(BaseHTTPRequestHandler):
    """Answers what the test has written down; everything else is 404."""

    answers: ClassVar[dict[str, tuple[int, Any]]] = {}
    keys: ClassVar[set[str | None]] = set()

    def do_GET(self) -> None:
        self.keys.add(self.headers.get("authorization"))
        status, content = self.answers.get(self.path, (404, {"detail": "Not Found"}))
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[str]:
    """The address of a server that answers `Scripted.answers`."""
    Scripted.answers.clear()
    Scripted.keys.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def failing(url: str, output: Path, **environment: str) -> str:
    """What the command says when it fails; it writes nothing then."""
    result = CliRunner(env=environment).invoke(
        app, ["profile", "measure", url, "-o", str(output), "--seconds", "20"]
    )
    assert result.exit_code == 1
    assert not output.exists()
    return f"{result.output}{result.exception}"


MODELS = {"data": [CARD]}
NO_COMPLETION = (400, {"error": {"message": "no such thing", "code": 400}})


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, "not an OpenAI endpoint: /v1/models gives no list of models (status 404)"),
        ({"/v1/models": (200, "<html>")}, "not an OpenAI endpoint"),
        ({"/v1/models": (200, {"data": 3})}, "not an OpenAI endpoint"),
        ({"/v1/models": (401, {})}, "wants a key"),
        ({"/v1/models": (200, {"data": []})}, "0 models are served"),
        ({"/v1/models": (200, {"data": [CARD, {"id": "n"}]})}, "choose one: m, n"),
        ({"/v1/models": (200, {"data": [{"id": "m"}]})}, "give --max-model-len"),
        ({"/v1/models": (200, MODELS), "/metrics": (200, BUSY)}, "serves 3 other request(s)"),
        ({"/v1/models": (200, MODELS), "/metrics": (200, TWO_ENGINES)}, "has 2 engines"),
        (
            {"/v1/models": (200, MODELS), "/v1/completions": NO_COMPLETION},
            "refuses a completion with status 400: no such thing",
        ),
        (
            {"/v1/models": (200, MODELS), "/v1/completions": (200, {"choices": []})},
            "a completion of the endpoint has no usage",
        ),
        (
            {
                "/v1/models": (200, MODELS),
                "/v1/completions": (200, {"usage": {"completion_tokens": 7}}),
            },
            "asked for 1 times 1 tokens, the endpoint made 7",
        ),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_said(
    scripted: str, tmp_path: Path, answers: dict[str, tuple[int, Any]], reason: str
) -> None:
    Scripted.answers.update(answers)
    assert reason in failing(scripted, tmp_path / "x.json")


def test_the_key_comes_from_the_environment_and_is_not_said(scripted: str, tmp_path: Path) -> None:
    Scripted.answers["/v1/models"] = (403, {})
    text = failing(scripted, tmp_path / "x.json", FORETELL_API_KEY="s3cret")
    assert "wants a key, or another one" in text
    assert Scripted.keys == {"Bearer s3cret"}
    assert "s3cret" not in text + repr(MeasureOptions(scripted, api_key="s3cret"))


def test_what_cannot_begin_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "x.json"
    assert "does not answer" in failing("http://127.0.0.1:1", output)
    assert "not an HTTP address: host:80" in failing("host:80", output)
    assert "No such file" in failing("http://127.0.0.1:1", tmp_path / "no" / "x.json")
    monkeypatch.setitem(sys.modules, "foretell.tools.profiles.show", None)
    assert ".[profiles]" in failing("http://127.0.0.1:1", output)
