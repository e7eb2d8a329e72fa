"""One bounded call of a platform's HTTP API, as drivers make it."""

import json
from collections.abc import Collection
from typing import Any

import aiohttp

from foretell.services.process.peer import read_bounded
from foretell.services.provisioner.driver import DriverFailed
from foretell.services.provisioner.tuning import TUNING


async def call(
    client: aiohttp.ClientSession,
    method: str,
    url: str,
    good: Collection[int] = (200,),
    **options: Any,
) -> bytes:
    """The body of the answer. Raises DriverFailed if the status is not `good` or it is too long."""
    async with client.request(method, url, allow_redirects=False, **options) as answer:
        try:
            body = await read_bounded(answer, TUNING.platform_answer_bytes)
        except ValueError as error:
            raise DriverFailed(str(error)) from error
        if answer.status not in good:
            raise DriverFailed(f"{answer.status} {_message(body)}")
        return body


def _message(body: bytes) -> str:
    """The error message in an answer of Docker or Kubernetes."""
    try:
        return str(json.loads(body)["message"])[:500]
    except (KeyError, TypeError, ValueError):
        return "without a reason"
