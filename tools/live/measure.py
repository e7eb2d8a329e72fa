"""One measurement: warm up, find the engine's capacity, send the load."""

import asyncio
import json
import time
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any, TypeVar

from foretell.latency.residuals import spread
from foretell.services.process import runtime
from foretell.services.process.probe import http_get
from foretell.tools.follower import NothingKnown, following
from foretell.tools.live.load import MixedLengths, at_their_times, bursty, under_way
from foretell.tools.live.recording import Recording, Served
from foretell.tools.live.session import Session
from foretell.tools.live.stream import NoStream, StreamClient
from foretell.tools.live.tap import listening
from foretell.tools.progress import Show
from foretell.workload import Arrival

_DEADLINE_S = 10.0
_CONCURRENCY_PER_SEQ = 1.5  # in flight while capacity is measured, so that requests always wait
_SETTLE_S = 1.0  # for the queue to drain before the timed requests
_UNCOUNTED_SHARE = 4  # of the saturating requests the first quarter fills the engine
_LEAST_SATURATING = 160
_CAPACITY_RATIO = 0.25  # of a measurement's length, for finding the capacity
_ENDING_RATIO = 0.15  # of it, for the last requests to end
_WARM_UP_RATIO = 0.2  # of the timed requests
_MOST_TOKENS = 4  # limit of tokens of secret lengths, as a multiple of the longest answer
_MOST_SATURATING = 100_000
_SATURATING_PER_STREAM = 2.5  # a quarter fills the engine; the last `concurrency` empty it

T = TypeVar("T")


class CannotMeasure(Exception):
    """The measurement is not possible; the text says why."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options of a live measurement."""

    url: str
    """The engine's address; its OpenAI endpoint is below /v1."""
    predictor: str
    """Address of the predictor beside this engine."""
    snapshots: str = ""
    """Endpoint of the engine's plugin, to record snapshots from; empty: none are recorded."""
    seconds: float = 0.0
    """Length of the whole measurement; 0: by the numbers of requests."""
    secret_key: str = ""
    """The key by which only engines learn lengths (`Session.secret_key`)."""
    requests: int = 400
    warm_up: int = 100
    """Requests of the same load before the measured ones."""
    cool_down: int = 20
    """Requests after the measured ones, so that the last measured ones run under the same load."""
    utilisation: float = 0.7
    """Mean arrival rate as a share of the capacity, which is measured first."""
    rate_per_s: float = 0.0
    """Mean arrival rate; 0: by `utilisation`. With a rate the capacity is not measured."""
    seed: int = 1
    lengths: MixedLengths = field(default_factory=MixedLengths)


async def measure(options: LiveOptions, show: Show) -> Recording:
    """Measure; raises CannotMeasure, NothingKnown, and NoStream if a peer fails meanwhile."""
    model, max_model_len = await _model_of(options)
    lengths = options.lengths.within(max_model_len)
    async with (
        StreamClient(options.url) as client,
        following(options.predictor) as follower,
    ):
        most_tokens = _MOST_TOKENS * lengths.most_output
        if max_model_len:
            most_tokens = min(most_tokens, max_model_len - lengths.most_prompt)
        session = Session(model, client, follower, options.seed, options.secret_key, most_tokens)
        began_s = time.monotonic()
        # Without an endpoint there are no messages.
        with listening(options.snapshots) if options.snapshots else nullcontext(list) as heard:
            capacity, rate = 0.0, options.rate_per_s
            if not rate:
                seats = follower.snapshot.config.max_num_seqs
                capacity = await _capacity(session, options, lengths, seats, show)
                rate = options.utilisation * capacity
            await asyncio.sleep(_SETTLE_S)
            if options.seconds:
                left_s = options.seconds * (1.0 - _ENDING_RATIO) - (time.monotonic() - began_s)
                options = _lasting(options, rate * left_s)
            await _send(session, options, lengths, rate, show)
            snapshots = heard()
        known = follower.snapshot
    requests = sorted(session.served, key=lambda request: request.decided_unix_s)
    about = {
        "model": model,
        "engine_version": known.config.engine_version,
        "emulated": known.config.emulated,
        "max_num_seqs": known.config.max_num_seqs,
        "load": _load_facts(options, lengths, capacity, rate, requests),
        "predictor": {
            "calibration_steps": known.calibration_steps,
            "step_error": round(spread(known.step_error, 1), 4),
            "dispatch_delay_ms": round(known.dispatch_delay_s * 1e3, 2),
            "answer_delay_ms": round(session.answer_delay_s * 1e3, 2),
        },
    }
    return Recording(about, requests, snapshots)


async def _capacity(
    session: Session, options: LiveOptions, lengths: MixedLengths, seats: int, show: Show
) -> float:
    """Requests per second that an engine with `seats` completes while some always wait."""
    concurrency, count = saturating(seats)
    until_s = inf
    if options.seconds:
        until_s = time.monotonic() + _CAPACITY_RATIO * options.seconds
        count = _MOST_SATURATING
    requests = bursty(count, 1.0, lengths, options.seed + 1_000_000)
    ended_s: list[float] = []
    last_s = 0.0

    async def serve(request: Arrival) -> None:
        nonlocal last_s
        last_s = time.monotonic()
        await session.fill(request)
        ended_s.append(time.monotonic())
        show("finding the engine's capacity", len(ended_s), 0 if options.seconds else count)

    await under_way(iter(requests), serve, concurrency, until_s)
    return rate_of(ended_s, last_s)


def rate_of(ended_s: Sequence[float], last_s: float) -> float:
    """Requests a second that end while some always wait; `last_s` is when the last one began.

    The first ones, which fill the engine, do not count, nor those after `last_s`, which empty it.
    """
    counted = [at_s for at_s in ended_s if at_s <= last_s]
    counted = counted[len(counted) // _UNCOUNTED_SHARE :]
    if len(counted) < 2:
        raise CannotMeasure("the engine is too slow for its capacity to be found in that time")
    return (len(counted) - 1) / (counted[-1] - counted[0])


def _lasting(options: LiveOptions, requests: float) -> LiveOptions:
    """Options with this number of requests in all; CannotMeasure if they are too few."""
    warm_up = round(_WARM_UP_RATIO * requests)
    measured = round(requests) - warm_up - options.cool_down
    if measured < 1:
        raise CannotMeasure("the engine is too slow for a measurement in that time")
    return replace(options, warm_up=warm_up, requests=measured)


def saturating(seats: int) -> tuple[int, int]:
    """The number of requests in flight while the capacity of an engine with `seats` is measured,
    and their total: more than fill the engine and empty it."""
    concurrency = max(2, round(_CONCURRENCY_PER_SEQ * seats))
    return concurrency, max(_LEAST_SATURATING, round(_SATURATING_PER_STREAM * concurrency))


async def _send(
    session: Session, options: LiveOptions, lengths: MixedLengths, rate: float, show: Show
) -> None:
    total = options.warm_up + options.requests + options.cool_down
    requests = bursty(total, rate, lengths, options.seed)
    counted = {r.request_id for r in requests[options.warm_up : total - options.cool_down]}
    done = 0

    async def serve(request: Arrival) -> None:
        nonlocal done
        await session.serve(request, measured=request.request_id in counted)
        done += 1
        what = "warming up" if done <= options.warm_up else "measuring"
        show(f"{what} at {rate:.2f} requests/s", done, total)

    await at_their_times(requests, serve)


def _load_facts(
    options: LiveOptions,
    lengths: MixedLengths,
    capacity: float,
    rate: float,
    requests: list[Served],
) -> dict[str, Any]:
    measured = [request for request in requests if request.measured]
    span_s = measured[-1].decided_unix_s - measured[0].decided_unix_s if len(measured) > 1 else 0.0
    return {
        "seed": options.seed,
        "lengths": asdict(lengths),
        "capacity_per_s": round(capacity, 3) if capacity else None,
        "rate_per_s": round(rate, 3),
        "warm_up": options.warm_up,
        "measured": len(measured),
        "measured_s": round(span_s, 1),
        "prompt_tokens": sum(request.prompt_tokens for request in measured),
        "output_tokens": sum(request.output_tokens for request in measured),
    }


async def _model_of(options: LiveOptions) -> tuple[str, int]:
    """Name of the engine's first model, and its context length (0: unknown)."""
    url = f"{options.url.rstrip('/')}/v1/models"
    try:
        status, body = await http_get(url, _DEADLINE_S)
        if status != 200:
            raise CannotMeasure(f"{url} answers {status}")
        card = json.loads(body)["data"][0]
        return str(card["id"]), int(card.get("max_model_len") or 0)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CannotMeasure(f"no engine at {options.url}: {error}") from error


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on an event loop of its own.

    Raises SystemExit with the reason if a peer fails or Ctrl-C ends it.
    """
    try:
        with asyncio.Runner(loop_factory=runtime.loop_factory()) as runner:
            return runner.run(work)
    except* (CannotMeasure, NothingKnown, NoStream) as group:
        raise SystemExit(f"accuracy: {_first(group)}") from group
    except* KeyboardInterrupt:
        raise SystemExit("accuracy: interrupted") from None


def _first(group: BaseExceptionGroup[Exception]) -> BaseException:
    """One of the errors: if a peer fails, all requests in flight report it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
