"""Engines that are up and compute nothing: vLLM's sleep mode, and its pauses.

vLLM tells of the first with `VLLM_SERVER_DEV_MODE`, of the second where weights are updated online.
"""

import json

import aiohttp

_QUESTIONS = {"is_sleeping": "asleep", "is_paused": "paused"}
"""Paths, which are the keys of their answers too, and what it means if these are true."""
_MOST_BYTES = 4096
_WAKE_TIMEOUT_S = 120.0
"""Weights come back from the host's memory, or from a disk."""


class Resting(Exception):
    """The engine is asleep, or paused."""


class Rest:
    """What one engine says of its rest."""

    def __init__(self) -> None:
        self.wanted = False
        """It has been asked for while it rests, to be waked."""
        self._known = dict(_QUESTIONS)

    def began(self) -> None:
        """It may be another engine than before, which is asked anew."""
        self._known = dict(_QUESTIONS)

    async def check(self, client: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        """Raise `Resting` if it rests. What it knows nothing of, it is not asked again."""
        for path, state in list(self._known.items()):
            async with client.get(f"{url}/{path}", headers=headers) as answer:
                body = await answer.content.read(_MOST_BYTES)
            told = _object(body) if answer.status == 200 else {}
            if path not in told:
                del self._known[path]
            elif told[path] is True:
                raise Resting(state)
        self.wanted = False

    async def wake(self, client: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        """Wake it from its sleep; a pause is of those who made it."""
        self.wanted = False
        timeout = aiohttp.ClientTimeout(total=_WAKE_TIMEOUT_S)
        async with client.post(f"{url}/wake_up", headers=headers, timeout=timeout) as answer:
            answer.raise_for_status()


def _object(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
