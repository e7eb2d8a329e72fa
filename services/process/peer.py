"""A client of another service that speaks HTTP, on this host or on another."""

from typing import Any

import aiohttp

from foretell.services.process.traffic import Traffic


def open_peer(address: str, traffic: Traffic, **options: Any) -> tuple[str, aiohttp.ClientSession]:
    """The URL of a service at `unix:PATH` or `HOST:PORT`, and a session that reaches it.

    `options` are those of the session. To be called on the event loop; the caller closes it.
    """
    connector: aiohttp.BaseConnector
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        url, connector = "http://peer", aiohttp.UnixConnector(path, limit=0)
    else:
        tls = traffic.client_tls()
        url = f"{'https' if traffic.authority else 'http'}://{address}"
        connector = aiohttp.TCPConnector(limit=0, ssl=tls if tls else True)
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), **options
    )
    return url, session


async def read_bounded(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of an answer; ValueError if it is longer than `most_bytes`."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > most_bytes:
            raise ValueError(f"its answer is too long: more than {most_bytes} bytes")
    return bytes(body)
