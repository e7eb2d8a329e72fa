"""Who may send requests, how many at a time, and how long."""

import asyncio

import pytest

from services.scheduler.http.auth import ApiKeys
from services.scheduler.http.errors import ApiError
from services.scheduler.http.limits import InProgress


def test_places_are_limited_and_whoever_is_refused_holds_none() -> None:
    in_progress = InProgress(limit=2)
    with in_progress.place(), in_progress.place():
        with pytest.raises(ApiError) as refused, in_progress.place():
            pytest.fail("there was no place left")
        assert refused.value.status == 429
        assert refused.value.headers == {"retry-after": "1"}
        assert in_progress.now == 2
    assert in_progress.now == 0


def test_a_request_that_fails_gives_its_place_back() -> None:
    in_progress = InProgress(limit=1)
    for _ in range(3):
        with pytest.raises(KeyError), in_progress.place():
            raise KeyError
        assert in_progress.now == 0


async def test_a_cancelled_request_gives_its_place_back() -> None:
    in_progress = InProgress(limit=1)

    async def serve() -> None:
        with in_progress.place():
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    assert in_progress.now == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert in_progress.now == 0


def test_a_place_is_given_back_once() -> None:
    in_progress = InProgress(limit=2)
    with in_progress.place():
        place = in_progress.place()
        place.__enter__()
        place.__exit__(None, None, None)
        place.__exit__(None, None, None)
        assert in_progress.now == 1


@pytest.mark.parametrize("keys", ["", " , ,"])
def test_without_keys_everyone_is_served(keys: str) -> None:
    assert ApiKeys(keys).tenant("") == ""
    assert ApiKeys(keys).tenant("Bearer anything") == ""


def test_a_tenant_is_called_by_the_position_of_its_key() -> None:
    keys = ApiKeys("first, second,,third")
    assert keys.tenant("Bearer first") == "1"
    assert keys.tenant("bearer  second") == "2"
    assert keys.tenant("Bearer third") == "3"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic first", "first", "Bearer firs"])
def test_what_is_no_key_is_refused(header: str) -> None:
    with pytest.raises(ApiError) as refused:
        ApiKeys("first").tenant(header)
    assert refused.value.status == 401
    assert refused.value.code == "invalid_api_key"
    assert "first" not in refused.value.message
