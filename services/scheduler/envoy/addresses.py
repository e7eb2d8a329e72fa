"""Engines as gateways name them: `IP:PORT`."""

import asyncio
import ipaddress
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from yarl import URL

from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.pool import Pool

_KNOWN_FOR_S = 5.0  # an engine's container may get another address after a restart
_PATIENCE_S = 0.5  # for a name that is needed only if another engine fails


class Addresses:
    """The addresses of the engines in a pool, by which a gateway sends requests to them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._resolved: dict[str, tuple[float, str]] = {}
        """By URL: until when an address is fresh, in `time.monotonic`, and the address."""

    async def of(self, instance: PoolInstance) -> str:
        """The address of an engine; raises OSError if its name has none."""
        url = instance.config.url
        if not self._fresh(url):
            parts = URL(url)
            found = await asyncio.get_running_loop().getaddrinfo(
                parts.host, parts.port, type=socket.SOCK_STREAM
            )
            address = _joined(str(found[0][4][0]), int(found[0][4][1]))
            self._resolved = {
                each.config.url: known
                for each in self._pool.instances.values()
                if (known := self._resolved.get(each.config.url))
            }
            self._resolved[url] = time.monotonic() + _KNOWN_FOR_S, address
        return self.known(instance)

    async def learn(self, instances: Iterable[PoolInstance]) -> None:
        """Look up addresses that are not fresh, but wait only `_PATIENCE_S`."""
        unsure = [self.of(each) for each in instances if not self._fresh(each.config.url)]
        if unsure:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await asyncio.gather(*unsure, return_exceptions=True)

    def known(self, instance: PoolInstance) -> str:
        """The address of an engine if it is known, fresh or not; otherwise ""."""
        url = instance.config.url
        return _literal(url) or self._resolved.get(url, (0.0, ""))[1]

    def _fresh(self, url: str) -> bool:
        return bool(_literal(url)) or self._resolved.get(url, (0.0, ""))[0] >= time.monotonic()

    async def instances(self, addresses: frozenset[str]) -> frozenset[str]:
        """The names of the engines at these addresses."""
        known = list(self._pool.instances.values())
        found = await asyncio.gather(*map(self.of, known), return_exceptions=True)
        pairs = zip(known, found, strict=True)
        return frozenset(each.config.instance_id for each, at in pairs if at in addresses)

    def instance(self, address: str) -> PoolInstance | None:
        known = self._pool.instances.values()
        return next((each for each in known if self.known(each) == address), None)


@lru_cache(4096)
def _literal(url: str) -> str:
    """The address in a URL that has one; "" for a name."""
    parts = URL(url)
    try:
        return _joined(str(ipaddress.ip_address(parts.host or "")), parts.port or 80)
    except ValueError:
        return ""


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
