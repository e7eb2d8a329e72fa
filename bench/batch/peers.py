"""How does a file of requests fare with `vllm run-batch` and with LiteLLM's batches, beside ours?

The same file, decoded greedily, goes to one real vLLM engine on the CPU by each way: `vllm
run-batch`, which starts an engine of its own; `foretell run-batch` and LiteLLM's batch runner
before an engine of `vllm serve`; and the batch service behind a scheduler. Then each is killed when
half of the file is answered and started again, and gets files with one wrong line.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from bench.batch import peer_litellm
from bench.batch.peer_runs import (
    CONTEXT,
    ENGINE_ARGS,
    MODEL,
    OUTPUT_TOKENS,
    PROMPT_WORDS,
    SEATS,
    Ran,
    answered,
    installed,
    kept,
    line,
    outputs,
    requests,
    run,
    run_batch_of_vllm,
    serve_of_vllm,
    serving,
    texts,
    written,
)
from bench.batch.peer_service import BatchService, relayed
from bench.processes import running_services
from bench.report import BUILD, ROOT, Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.batch.release import PLAIN_WINDOW
from foretell.services.process.folders import free_ports

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="20 minutes",
    needs="`make setup-vllm`, the model of `make run-vllm`, a package registry for LiteLLM",
    packages=("foretell", "aiohttp", "sqlalchemy"),
)
VLLM, OURS, PROXY, SERVICE = "vllm", "ours", "litellm", "service"
_COMPARED = (VLLM, OURS, PROXY)
"""The commands that are killed and get wrong lines."""
LITELLM = "litellm[proxy]==1.106.12"
_AT_ONCE = {
    VLLM: f"all, {SEATS} in the engine",
    OURS: f"{PLAIN_WINDOW}",
    PROXY: "4",
    "litellm-64": f"{SEATS}",
    SERVICE: "by predictions",
}
_READING, _WRITING = "Reading batch from", "Writing outputs to local file"
"""What `vllm run-batch` logs before the first line and after the last answer."""
_KILL_LOOK_S, _SETTLE_S = 0.1, 2.0
_RIGHT_LINES, _WRONG_PLACE, _SHORT = 20, 10, (8, 16)
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.+-]+){3,}")
"""Paths of this machine, but not addresses."""
WRONG = {
    "no JSON": '{"custom_id": "wrong", "method": "POST", "url": ',
    "an unknown URL": line("wrong", "one request", 8, "/v1/unknown"),
    "`max_tokens` beyond the context": line("wrong", "one request", 10 * CONTEXT),
}


@dataclass(frozen=True, slots=True)
class Way:
    """A command that answers a file."""

    key: str
    title: str
    argv: Callable[[Path, Path], Sequence[str]]
    """The command for an input and an output file."""
    kept: Callable[[Path], int]
    """How many answers are in the output file, or in what is kept beside it."""
    engine: str
    """Where the metrics of its engine are."""
    phrases: tuple[str, str] | None = None
    """What its log says where the measured time begins and where it ends; None: it is all of it."""

    def file_s(self, ran: Ran) -> float:
        """Seconds for the file, without the start of an engine."""
        if self.phrases is None:
            return ran.wall_s
        begin, end = self.phrases
        return ran.seen_s[end] - ran.seen_s[begin]


def _ways(options: argparse.Namespace, engine: str) -> list[Way]:
    (port,) = free_ports("127.0.0.1", 1)

    def vllm(source: Path, output: Path) -> Sequence[str]:
        return run_batch_of_vllm(options.python, options.model, source, output, port)

    def ours(source: Path, output: Path) -> Sequence[str]:
        command = (
            sys.executable,
            "-P",
            "-m",
            "foretell.cli.main",
            "run-batch",
            f"--endpoint={engine}",
        )
        return (*command, "-i", str(source), "-o", str(output))

    found = [
        Way(
            *(VLLM, "`vllm run-batch`", vllm, lambda output: len(outputs(output))),
            *(f"http://127.0.0.1:{port}", (_READING, _WRITING)),
        ),
        Way(OURS, "`foretell run-batch`", ours, _kept_by_us, engine),
    ]
    if options.litellm:
        python = _litellm("python")

        def litellm(concurrency: int) -> Callable[[Path, Path], Sequence[str]]:
            script = (str(python), "-P", peer_litellm.__file__)
            return lambda source, output: (
                *(*script, str(source), str(output), engine, MODEL),
                *(str(_database(output)), str(concurrency)),
            )

        phrases = (peer_litellm.BEGUN, peer_litellm.ENDED)
        stored, title = _kept_by_litellm, "LiteLLM's batch runner"
        found += [
            Way(PROXY, title, litellm(0), stored, engine, phrases),
            Way(
                "litellm-64", f"the same, {SEATS} at once", litellm(SEATS), stored, engine, phrases
            ),
        ]
    return found


def _litellm(program: str) -> Path:
    """A program of LiteLLM's environment, which is installed the first time."""
    return installed(LITELLM, BUILD / "batch-peers" / "litellm") / program


def _kept_by_us(output: Path) -> int:
    return kept(output.with_name(f"{output.name}.unfinished"))


def _kept_by_litellm(output: Path) -> int:
    return peer_litellm.stored_answers(_database(output))


def _database(output: Path) -> Path:
    return output.with_name(f"{output.name}.database")


async def _measured(options: argparse.Namespace, folder: Path) -> Numbers:
    draws = Random(options.seed)
    source = written(folder / "in.jsonl", requests(options.lines, draws))
    (folder / "services").mkdir()
    (port,) = free_ports("127.0.0.1", 1)
    url, command = f"http://127.0.0.1:{port}", serve_of_vllm(options.python, options.model, port)
    async with running_services(folder / "services") as services:
        with serving(command, folder / "serve.log", f"{url}/health") as start_s:
            ways = _ways(options, url)
            service = await BatchService.start(services, options.python, options.model)
            runs = await _timed(ways, service, source, options.rounds)
            compared = [way for way in ways if way.key in _COMPARED]
            kills = {}
            for way in compared:
                kills[way.key] = await asyncio.to_thread(_killed, way, source, options.lines)
                print(way.key, kills[way.key], flush=True)
            output = folder / f"{SERVICE}-killed.jsonl"
            kills[SERVICE] = await service.killed(source, output, options.lines // 2)
            kills[SERVICE]["output"] = len(texts(output))
            print(SERVICE, kills[SERVICE], flush=True)
            wrong = await asyncio.to_thread(_all_wrong, compared, folder, draws)
            relay = None
            if options.litellm:
                few = written(folder / "few.jsonl", requests(_RIGHT_LINES, draws, _SHORT))
                relay = await asyncio.to_thread(relayed, _litellm("litellm"), service.url, few)
                print(relay, flush=True)
    titles = {way.key: way.title for way in ways} | {SERVICE: "batch service behind a scheduler"}
    found = {"titles": titles, "runs": runs, "kills": kills, "wrong": wrong, "relay": relay}
    return {"serve_start_s": round(start_s, 1), **found}


async def _timed(
    ways: Sequence[Way], service: BatchService, source: Path, rounds: int
) -> list[dict[str, Any]]:
    """The file by each way in turn, some rounds; answers are compared with the first ones."""
    runs: list[dict[str, Any]] = []
    first: dict[str, str] = {}
    for number in range(rounds):
        for way in [*ways, None]:
            key = way.key if way else SERVICE
            output = source.with_name(f"{key}-{number}.jsonl")
            if way:
                argv, log = way.argv(source, output), output.with_suffix(".log")
                ran = await asyncio.to_thread(run, argv, log, way.phrases or ())
            else:
                ran = await service.run(source, output)
            assert not ran.exit_code, ran.log[-3000:]
            found = texts(output)
            first = first or found
            numbers: dict[str, Any] = {
                "file_s": round(way.file_s(ran) if way else ran.wall_s, 2),
                "wall_s": round(ran.wall_s, 2),
                "peak_mb": round(ran.peak_mb),
                "answers": len(found),
                "same": sum(first[each] == text for each, text in found.items()),
            }
            if key == VLLM:
                numbers["start_s"] = round(ran.seen_s[_READING], 2)
            runs.append({"round": number, "way": key, **numbers})
            print(runs[-1], flush=True)
    return runs


def _killed(way: Way, source: Path, lines: int) -> dict[str, int]:
    """Kill it when half of the file is answered, look at what is left, and start it again."""
    output = source.with_name(f"{way.key}-killed.jsonl")
    own = way.key == VLLM  # its engine, and with it the metrics, end with it
    before, seen = 0 if own else answered(way.engine), [0]

    def half() -> bool:
        time.sleep(_KILL_LOOK_S)
        seen.append(answered(way.engine) - before)
        return 2 * seen[-1] >= lines

    first = run(way.argv(source, output), output.with_suffix(".log"), (), half)
    assert first.exit_code < 0, f"{way.title} was to be killed: {first.log[-3000:]}"
    time.sleep(_SETTLE_S)
    at_kill = seen[-1] if own else answered(way.engine) - before
    found = {"answered": at_kill, "kept": way.kept(output)}
    again = run(way.argv(source, output), output.with_suffix(".again.log"))
    assert not again.exit_code, again.log[-3000:]
    # An engine that has just started has answered what is in its output.
    computed = at_kill + len(texts(output)) if own else answered(way.engine) - before
    return {**found, "computed": computed, "output": len(texts(output))}


def _all_wrong(ways: Sequence[Way], folder: Path, draws: Random) -> list[dict[str, Any]]:
    """What becomes of files of right lines with a wrong one among them."""
    found: list[dict[str, Any]] = []
    for name, wrong in WRONG.items():
        lines = requests(_RIGHT_LINES, draws, _SHORT)
        lines.insert(_WRONG_PLACE, wrong)
        for way in ways:
            output = folder / f"wrong-{len(found)}.jsonl"
            source = written(output.with_suffix(".in"), lines)
            ran = run(way.argv(source, output), output.with_suffix(".log"), way.phrases or ())
            rows = outputs(output)
            refused = rows.get("wrong")
            said = [each.strip() for each in ran.log.splitlines() if each.strip()][-3:]
            found.append(
                {
                    "wrong": name,
                    "way": way.key,
                    "exit_code": ran.exit_code,
                    "right": len(texts(output).keys() - {"wrong"}),
                    "answer": "wrong" in texts(output),
                    "status": ((refused or {}).get("response") or {}).get("status_code"),
                    "said": _PATH.sub("PATH", " ".join(said))[-300:],
                }
            )
            print(found[-1], flush=True)
    return found


def _version(python: Path) -> str:
    code = (
        "from importlib.metadata import packages_distributions as p, version as v;"
        "n = p()['vllm'][0]; print(n, v(n))"
    )
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def arguments(parser: argparse.ArgumentParser) -> None:
    python, model = ROOT / ".venv-vllm/bin/python", ROOT / ".models/tiny-llama"
    parser.add_argument("--python", type=Path, default=python, help="A Python with vLLM.")
    parser.add_argument("--model", type=Path, default=model, help="Folder of the model.")
    parser.add_argument("--lines", type=int, default=400, help="Of the file.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--no-litellm", dest="litellm", action="store_false", help="Leave LiteLLM out."
    )


def measure(options: argparse.Namespace) -> Numbers:
    options.python, options.model = options.python.absolute(), options.model.absolute()
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        found = asyncio.run(_measured(options, Path(folder)))
    return {
        **{name: getattr(options, name) for name in ("lines", "rounds", "seed")},
        "engine": f"{_version(options.python)}, `{ENGINE_ARGS}`",
        **found,
    }


def tables(page: Numbers) -> Blocks:
    """Times and memory, what a kill leaves, and what becomes of files with a wrong line."""
    text = (
        f"{page['lines']} chat completions, greedy, prompts of {PROMPT_WORDS[0]} to "
        f"{PROMPT_WORDS[1]} phrases, answers of {OUTPUT_TOKENS[0]} to "
        f"{OUTPUT_TOKENS[1]} tokens; rounds: {page['rounds']}, the ways in turn, seed "
        f"{page['seed']}. Engine: {page['engine']}. LiteLLM: {LITELLM}. `vllm serve`, "
        f"before which all others stand, served after {page['serve_start_s']:.0f} s.\n"
    )
    blocks = (_times(page), _kills(page), _wrong_lines(page), _relay(page))
    return {"tables": "\n".join((made_by(page), text, *blocks))}


def _times(page: Numbers) -> str:
    rows = []
    for key, title in page["titles"].items():
        runs = [each for each in page["runs"] if each["way"] == key]
        answers = sum(each["answers"] for each in runs)
        starts = [each["start_s"] for each in runs if "start_s" in each]
        rows.append(
            (
                *(title, _AT_ONCE[key], _span([each["file_s"] for each in runs])),
                _span(starts) if starts else "",
                f"{max(each['peak_mb'] for each in runs)}",
                f"{sum(each['same'] for each in runs)} of {answers}",
            )
        )
    header = (
        *("", "requests at once", "the file, s: mean (least to most)", "its engine's start, s"),
        *("peak memory without the engine's, MB", "answers equal to `vllm run-batch`'s first"),
    )
    return markdown_table(header, rows)


def _relay(page: Numbers) -> str:
    relay = page["relay"]
    if relay is None:
        return ""
    told = f": {relay['said']}" if relay["said"] else ""
    return (
        f"LiteLLM's proxy, without a database, with the batch service as its provider: last step "
        f"`{relay['step']}`, status {relay['status']}{told}; {relay['lines']} of {_RIGHT_LINES} "
        "answers came through it.\n"
    )


def _span(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})"


def _kills(page: Numbers) -> str:
    rows = [
        (
            page["titles"][key],
            *(each["answered"], each["kept"], each["computed"] - page["lines"], each["output"]),
        )
        for key, each in page["kills"].items()
    ]
    header = (
        *("killed at half of the file", "answered by the engine", "of these kept"),
        *("computed again after a new start", "answers in the end"),
    )
    return markdown_table(header, rows)


def _wrong_lines(page: Numbers) -> str:
    rows = []
    for each in page["wrong"]:
        status = f"status {each['status']}" if each["status"] else "the file is refused"
        outcome = "answered" if each["answer"] else status
        title = page["titles"][each["way"]]
        rows.append((each["wrong"], title, each["right"], outcome, each["exit_code"]))
    header = (
        *("one wrong line", "way", f"right lines answered, of {_RIGHT_LINES}"),
        *("the wrong one", "exit code"),
    )
    return markdown_table(header, rows)
