"""A file of requests, the commands that answer it, and processes that are watched and killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx

from bench.vllm_cpu import ENVIRONMENT
from foretell.services.batch.store import Store

MODEL, ENDPOINT = "tiny", "/v1/chat/completions"
SEATS, CONTEXT = 64, 2048
ENGINE_ARGS = (
    f"--enforce-eager --dtype float32 --max-model-len {CONTEXT} --max-num-seqs {SEATS} "
    "--distributed-executor-backend uni --no-enable-prefix-caching"
)
_WORDS = [
    "the",
    "model",
    "a server",
    "one request",
    "answers",
    "waits for",
    "measures",
    "a long question",
]
PROMPT_WORDS, OUTPUT_TOKENS = (8, 200), (16, 192)
_START_S, _END_S, _LOOK_S, _STOP_S = 300.0, 600.0, 0.05, 20.0
_ANSWERED = re.compile(
    r'^vllm:request_success_total\{[^}]*finished_reason="(?:stop|length)"[^}]*\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one process."""

    exit_code: int
    wall_s: float
    peak_mb: float
    """The most resident memory that it had, without that of processes which it started."""
    seen_s: Mapping[str, float]
    """When its log had each phrase that was looked for, in seconds from its start."""
    log: str


def requests(
    count: int, draws: Random, output_tokens: tuple[int, int] = OUTPUT_TOKENS
) -> list[str]:
    """Lines with prompts and answers of mixed lengths, decoded greedily."""
    return [
        line(
            f"line-{number}",
            f"{number} " + " ".join(draws.choices(_WORDS, k=draws.randint(*PROMPT_WORDS))),
            draws.randint(*output_tokens),
        )
        for number in range(count)
    ]


def line(custom_id: str, prompt: str, max_tokens: int, url: str = ENDPOINT) -> str:
    """One line of a file."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def written(path: Path, lines: Sequence[str]) -> Path:
    """Write the lines to a file."""
    path.write_text("".join(f"{each}\n" for each in lines), encoding="utf-8")
    return path


def outputs(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of an output file by their `custom_id`; empty where there is no file."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["custom_id"]: row for row in rows}


def texts(path: Path) -> dict[str, str]:
    """The answers in an output file by their `custom_id`, without requests that failed."""
    found = {}
    for custom_id, row in outputs(path).items():
        with suppress(KeyError, TypeError):
            found[custom_id] = row["response"]["body"]["choices"][0]["message"]["content"]
    return found


def kept(folder: Path) -> int:
    """Answers of the newest batch that our store in this folder holds."""
    store = Store(folder)
    try:
        newest = store.batches("", "", 1)
    finally:
        store.close()
    assert newest, "a batch was begun"
    return newest[0].counts.completed + newest[0].counts.failed


def answered(url: str) -> int:
    """Requests that an engine has answered in full, by its metrics; 0 before it serves them."""
    try:
        found = httpx.get(f"{url}/metrics", timeout=5.0, trust_env=False, follow_redirects=True)
    except httpx.HTTPError:
        return 0
    return round(sum(map(float, _ANSWERED.findall(found.text))))


def peak_mb(pid: int) -> float:
    """The most resident memory that a process has had, in millions of bytes; 0 if it has ended."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if each.startswith("VmHWM:"):
                return int(each.split()[1]) * 1024 / 1e6
    return 0.0


def run(
    argv: Sequence[str],
    log: Path,
    phrases: Sequence[str] = (),
    kill_when: Callable[[], bool] | None = None,
) -> Ran:
    """Run a command to its end, or until it is killed with all that it has started."""
    begun_s, seen_s, most_mb = time.monotonic(), dict[str, float](), 0.0
    process = _started(argv, log)
    try:
        while process.poll() is None:
            now_s = time.monotonic() - begun_s
            assert now_s < _END_S, f"{argv}: {_text(log)[-3000:]}"
            most_mb = max(most_mb, peak_mb(process.pid))
            _look(log, phrases, now_s, seen_s)
            if kill_when is not None and kill_when():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            time.sleep(_LOOK_S)
        wall_s = time.monotonic() - begun_s
    finally:
        _end(process)
    _look(log, phrases, wall_s, seen_s)
    return Ran(process.returncode, wall_s, most_mb, seen_s, _text(log))


def _look(log: Path, phrases: Sequence[str], now_s: float, seen_s: dict[str, float]) -> None:
    missing = [phrase for phrase in phrases if phrase not in seen_s]
    text = _text(log) if missing else ""
    seen_s.update({phrase: now_s for phrase in missing if phrase in text})


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _started(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **ENVIRONMENT, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with log.open("wb") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process if it runs, and kill what it has left."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def serving(argv: Sequence[str], log: Path, health: str) -> Iterator[float]:
    """A server that serves, which is so when the address `health` answers; seconds until then."""
    begun_s = time.monotonic()
    process = _started(argv, log)
    try:
        while not _serves(health):
            assert process.poll() is None, _text(log)[-3000:]
            assert time.monotonic() - begun_s < _START_S, _text(log)[-3000:]
            time.sleep(_LOOK_S)
        yield time.monotonic() - begun_s
    finally:
        _end(process)


def _serves(health: str) -> bool:
    try:
        return httpx.get(health, timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


_ENGINE = (*ENGINE_ARGS.split(), f"--served-model-name={MODEL}")


def _vllm(python: Path, command: str) -> tuple[str, ...]:
    """The module of a command: `vllm` itself does not start where its package is `vllm-cpu`."""
    return (str(python), "-m", f"vllm.entrypoints.openai.{command}")


def serve_of_vllm(python: Path, model: Path, port: int) -> tuple[str, ...]:
    """`vllm serve` on `port`."""
    flags = ("--host=127.0.0.1", f"--port={port}", "--disable-uvicorn-access-log")
    return (*_vllm(python, "api_server"), f"--model={model}", *_ENGINE, *flags)


def run_batch_of_vllm(
    python: Path, model: Path, source: Path, output: Path, port: int
) -> tuple[str, ...]:
    """`vllm run-batch`, which serves its metrics on `port`."""
    return (
        *(*_vllm(python, "run_batch"), "-i", str(source), "-o", str(output)),
        *(f"--model={model}", *_ENGINE, "--enable-metrics", "--host=127.0.0.1", f"--port={port}"),
    )


def installed(requirement: str, environment: Path) -> Path:
    """Have pip install this into an environment of its own, once; its folder of programs."""
    done, bin_ = environment / ".installed", environment / "bin"
    if not (done.exists() and done.read_text() == requirement):
        pip = (str(bin_ / "python"), "-m", "pip", "install", "--quiet")
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([*pip, "--disable-pip-version-check", requirement], check=True)
        done.write_text(requirement)
    return bin_
