"""What do streams that can go on, limits of callers and fair shares cost?

Each in one process and side by side with the same work without it: a chunk of a chat's stream that
is followed by its token ids, beside one that is only relayed; a request of a caller with every
limit, beside one of a caller without any; a placement by a core that shares engines between
tenants, beside one by a core that does not.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.overhead import placement_load
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.model import LengthEstimate, Load, RequestSpec
from foretell.placement import PlacementConfig, PlacementCore, events
from foretell.placement.shares import Shares
from foretell.policy import make_policy
from foretell.services.scheduler.http.auth import ApiKeys
from foretell.services.scheduler.relay.continuation import Progress
from foretell.services.scheduler.relay.framing import Framing
from foretell.services.scheduler.relay.stream import StreamFraming

BENCH = Benchmark(__file__, __doc__, takes="a minute", packages=("foretell", "orjson"))
CHUNKS, REQUESTS, ENGINES, TENANTS = 2000, 500, 12, 10
"""One round has so many chunks of a stream, or requests of so many tenants."""
_RATE = "200"
_KEY = "a key of forty characters, as they often are"


class NoShares(Shares):
    """Nobody is over a share, and nobody's work is counted."""

    def arrived(self, tenant: str, now_s: float) -> None:
        """It does not matter who comes."""

    def is_over(self, tenant: str) -> bool:
        """Nobody is."""
        return False

    def must_wait(self, tenant: str) -> bool:
        """Nobody does."""
        return False

    def sent(self, tenant: str, work: float) -> None:
        """Not counted."""

    def ended(self, tenant: str, work: float) -> None:
        """Nor this."""


def chunks(*, with_ids: bool) -> list[bytes]:
    """A chat's stream as vLLM sends it, a token in each event."""
    head = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    found = [
        head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
        b'"logprobs":null,"finish_reason":null}]}\n\n'
    ]
    for number in range(CHUNKS):
        ids = b"[%d]" % (1000 + number) if with_ids else b"null"
        found.append(
            head + b'"choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,'
            b'"finish_reason":null,"token_ids":%b}]}\n\n' % (number, ids)
        )
    return found


def stream_of(make: Callable[[], Framing], parts: Sequence[bytes]) -> Callable[[], int]:
    """What takes one stream in, and returns of how many chunks."""

    def run() -> int:
        framing = make()
        for part in parts:
            framing.feed(part)
        return len(parts)

    return run


def keys_of(folder: Path, **limits: int) -> ApiKeys:
    """One named key."""
    digest = hashlib.sha256(_KEY.encode()).hexdigest()
    file = folder / f"{len(limits)}.yaml"
    file.write_text(json.dumps({"caller": {"sha256": digest, **limits}}))
    return ApiKeys(file=str(file))


def requests_of(keys: ApiKeys) -> Callable[[], int]:
    """Requests of a caller: its key, its place, what it may spend and is told of that."""
    headers = {"authorization": f"Bearer {_KEY}"}

    def run() -> int:
        for _ in range(REQUESTS):
            tenant = keys.tenant(headers)
            with tenant.place() as grant:
                if grant is not None:
                    grant.reserve(300.0)
                    grant.foretell(2.0)
                    grant.headers()
                    grant.settle(250.0)
        return REQUESTS

    return run


def placements_of(shares: Shares) -> Callable[[], int]:
    """Requests of tenants, one of which sends half of all, of which 40 are in progress."""
    core = PlacementCore(make_policy("least_outstanding"), PlacementConfig(), lambda: 0.5)
    core._shares = core._state.shares = shares
    names = [f"engine-{index}" for index in range(ENGINES)]
    for name in names:
        core.step(events.InstanceUp(name), 0.0)
        core.instances.heard(core.instances[name], Load(8, 0, 0, 200, 1056, 0, 48), 0.0)
    sent: list[str] = []
    placed = 0

    def run() -> int:
        nonlocal placed
        for _ in range(REQUESTS):
            placed += 1
            key = f"r{placed}"
            spec = RequestSpec(key, 500, 0, LengthEstimate(200.0))
            tenant = "loud" if placed % 2 else f"t{placed % TENANTS}"
            core.step(events.Arrived(spec, tenant=tenant), 0.001 * placed)
            sent.append(key)
            if len(sent) > 40:
                core.step(events.Ended(sent.pop(0)), 0.001 * placed)
        return REQUESTS

    return run


def compared(without: Callable[[], int], with_it: Callable[[], int], rounds: int) -> Numbers:
    """CPU microseconds of one piece of work: medians over pairs of rounds, in changing order."""
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for index in (0, 1) if number % 2 else (1, 0):
            began_s = time.process_time()
            pieces = (without, with_it)[index]()
            if number:  # the first is a rehearsal
                spent[index].append(1e6 * (time.process_time() - began_s) / pieces)
    pairs = zip(*spent, strict=True)
    return {
        "without_us": median(spent[0]),
        "with_us": median(spent[1]),
        "more_us": median(b - a for a, b in pairs),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=100, help="Pairs of rounds.")


def measure(options: argparse.Namespace) -> Numbers:
    """Compare all three, and note what a scheduler spends on a request in all."""
    loaded = placement_load.BENCH.read()["variants"]["slo"]["rates"][_RATE]
    ids, plain, rounds = chunks(with_ids=True), chunks(with_ids=False), options.rounds
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        folder = Path(name)
        limited = keys_of(folder, requests_per_min=10**9, tokens_per_min=10**9, concurrency=1000)
        return {
            "rounds": rounds,
            "request_us": 1000 * loaded["scheduler_ms"],
            "following": compared(
                stream_of(StreamFraming, plain),
                stream_of(lambda: StreamFraming(Progress()), ids),
                rounds,
            ),
            "limits": compared(requests_of(ApiKeys()), requests_of(limited), rounds),
            "shares": compared(placements_of(NoShares()), placements_of(Shares()), rounds),
        }


def tables(numbers: Numbers) -> Blocks:
    """A row for each safeguard."""
    titles = {
        "following": "a chunk of a stream that can go on",
        "limits": "a request of a caller with every limit",
        "shares": "a placement with fair shares",
    }
    rows = [(title, *_cells(numbers, name)) for name, title in titles.items()]
    both_us = numbers["limits"]["more_us"] + numbers["shares"]["more_us"]
    header = ("", "without, us", "with, us", "more, us", "that is")
    text = [
        made_by(numbers),
        f"Laboratory: in one process; CPU time, medians over {numbers['rounds']} pairs of rounds "
        f"of {CHUNKS:,} chunks or {REQUESTS} requests. *Of a request*: beside the "
        f"{numbers['request_us']:,.0f} us of CPU that a scheduler as deployed spends on one at "
        f"{_RATE} requests/s ([placement under load](placement_load.md)). Limits and fair shares "
        f"together: {both_us / numbers['request_us']:.1%} of a request.\n",
        markdown_table(header, rows),
    ]
    return {"tables": "\n".join(text)}


def _cells(numbers: Numbers, name: str) -> list[str]:
    found: dict[str, Any] = numbers[name]
    more_us = found["more_us"]
    if name == "following":
        told = f"{more_us:+.2f} CPU-s per million chunks"
    else:
        told = f"{more_us / numbers['request_us']:.1%} of a request"
    return [*(f"{found[each]:.2f}" for each in ("without_us", "with_us", "more_us")), told]
