"""How a supervisor queries what it started: ready files, and small HTTP requests by the standard
library."""

import asyncio
import contextlib
import http.client
import json
import urllib.parse
from pathlib import Path
from typing import Any

_MAX_BODY_BYTES = 4 << 20


async def http_get(url: str, timeout_s: float, *, bearer: str = "") -> tuple[int, bytes]:
    """Status and body (cut at 4 MiB) of a GET; OSError if there is no proper answer in time."""
    return await asyncio.to_thread(get, url, timeout_s, bearer=bearer)


async def is_up(url: str, timeout_s: float) -> bool:
    """Whether a GET is answered with 200 in time."""
    try:
        return (await http_get(url, timeout_s))[0] == 200
    except OSError:
        return False


def get(url: str, timeout_s: float, *, bearer: str = "") -> tuple[int, bytes]:
    """The blocking form of `http_get`."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OSError(f"not an HTTP address: {url}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OSError(f"not an HTTP address: {url}")
    secure = parts.scheme == "https"
    make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = make(parts.hostname, port, timeout=timeout_s)
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    with contextlib.closing(connection):
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(_MAX_BODY_BYTES)
        except http.client.HTTPException as error:
            raise OSError(f"{url} does not answer in HTTP: {error!r}") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file that another process replaces atomically; None while missing."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    assert isinstance(content, dict), f"{path} holds no JSON object"
    return content
