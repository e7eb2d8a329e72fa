"""Asks every scheduler replica behind an address."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from foretell.config.cluster import load_cluster
from foretell.services.process.probe import get

Report = dict[str, Any]
Get = Callable[[str], tuple[int, bytes]]
"""Status and body of a GET over a connection of its own; OSError without an answer."""
T = TypeVar("T")

_TIMEOUT_S = 5.0
_KNOWN_IN_A_ROW = 24
"""Replicas that share a port, or are behind a load balancer, answer at random. After this many
answers of known ones in a row, one of four is still unknown once in a thousand times."""


class NoStatus(Exception):
    """There is no scheduler's status at an address; the text says why."""


def addresses_of(cluster_file: str) -> list[str]:
    """Where the schedulers of a cluster file listen: on one port, or in containers on several."""
    section = load_cluster(cluster_file).schedulers
    return [section.near_url(section.port + index) for index in range(section.replicas)]


def each_replica(ask: Callable[[], tuple[str, T]]) -> Iterator[T]:
    """An answer of each replica at an address. `ask` returns a replica's name and its answer."""
    seen: set[str] = set()
    known = 0
    while known < _KNOWN_IN_A_ROW:
        name, answer = ask()
        known = known + 1 if name in seen else 0
        if name not in seen:
            seen.add(name)
            yield answer


def fetch(address: str, api_key: str) -> tuple[int, bytes]:
    """Status and body of a GET over a connection of its own; OSError without an answer."""
    return get(address, _TIMEOUT_S, bearer=api_key)


def reports(
    urls: Iterable[str], *, api_key: str = "", ask: Get | None = None
) -> tuple[list[Report], list[str]]:
    """The `/status` of each replica that answers at `urls`, in the order of ids, and the errors of
    addresses; raises NoStatus if none answers."""

    def one(address: str) -> tuple[str, Report]:
        report = _report(address, ask or (lambda asked: fetch(asked, api_key)))
        return report["replica_id"], report

    found: dict[str, Report] = {}
    wrong: list[str] = []
    for url in urls:
        address = f"{url.rstrip('/')}/status"
        try:
            found |= {each["replica_id"]: each for each in each_replica(partial(one, address))}
        except NoStatus as error:
            wrong.append(str(error))
    if not found:
        raise NoStatus("; ".join(wrong))
    return [found[replica_id] for replica_id in sorted(found)], wrong


def _report(address: str, ask: Get) -> Report:
    try:
        code, body = ask(address)
    except OSError as error:
        url = address.removesuffix("/status")
        raise NoStatus(f"no scheduler answers at {url}: {error}") from error
    if code == 401:
        raise NoStatus(f"{address} wants a key: give one with --api-key")
    if code != 200:
        raise NoStatus(f"{address} answers {code}: is it a scheduler of Foretell?")
    return parsed(address, body)


def parsed(address: str, body: bytes) -> Report:
    """The report in the body of an answer; raises NoStatus."""
    try:
        report = json.loads(body)
        if isinstance(report["replica_id"], str) and isinstance(report["instances"], list):
            if report.keys() == {"replica_id", "tenant", "limits", "usage", "instances"}:
                text = f"{address} shows engines only to a key that is named with 'admin: true'"
                raise NoStatus(text)
            return dict(report)
    except (ValueError, KeyError, TypeError):
        pass
    raise NoStatus(f"{address} gives no status of a scheduler")
