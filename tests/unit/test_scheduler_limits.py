"""Who may send requests, how many at a time, and how long."""

import asyncio
import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from foretell.config import SchedulerSettings
from foretell.openai.errors import ApiError
from foretell.services.process.traffic import OPEN
from foretell.services.scheduler.__main__ import _api_keys
from foretell.services.scheduler.tenants.auth import ApiKeys
from foretell.tenants.in_progress import InProgress, PredictedEnds
from foretell.tenants.limits import TenantLimits
from foretell.tenants.quota import Tenant


def test_places_are_limited_and_who_is_refused_holds_none() -> None:
    in_progress = InProgress(limit=2)
    with in_progress.place(), in_progress.place():
        with pytest.raises(ApiError) as refused, in_progress.place():
            pytest.fail("there was no place left")
        assert refused.value.status == 429
        assert refused.value.headers == {"retry-after": "1"}
        assert in_progress.now == 2
    assert in_progress.now == 0


def test_who_is_refused_comes_back_when_it_is_predicted_to_be_its_turn() -> None:
    """Not all at the same time: the second one gets the time when the second place will be free."""
    now_s = [100.0]
    ends_s = [131.0, 105.2, 99.0, 500.0]
    ends = PredictedEnds(lambda: ends_s, lambda: now_s[0])
    in_progress = InProgress(4, ends.wait_s)

    def told() -> str:
        with pytest.raises(ApiError) as refused, in_progress.place():
            pytest.fail("there was no place left")
        return refused.value.headers["retry-after"]

    with ExitStack() as three, in_progress.place():
        for _ in range(3):
            three.enter_context(in_progress.place())
        assert [told() for _ in range(6)] == ["1", "6", "31", "60", "60", "60"]
        three.close()  # three places are free, and one request is still in progress
        with in_progress.place(), in_progress.place(), in_progress.place():
            assert told() == "6", "of those who fit, one is still to come"
        now_s[0], ends_s[:] = 110.0, [112.5]
        with in_progress.place(), in_progress.place(), in_progress.place():
            assert told() == "3"


def test_places_of_any_number_are_for_each_tenant() -> None:
    """A tenant that wants everything leaves a fifth to the next, which leaves a part of that."""
    bodies = InProgress(1000, what="bytes", refusal=(503, "too_much"))
    for tenant, most in (("a", 800), ("b", 160)):
        for _ in range(most // 40):
            bodies.take(tenant, 40)
        with pytest.raises(ApiError, match=str(most)) as refused:
            bodies.take(tenant, 40)
        assert (refused.value.status, refused.value.code) == (503, "too_much")
    bodies.give_back("a", 800)
    assert (bodies.of("a"), bodies.of("b"), bodies.now) == (0, 160, 160)
    with pytest.raises(ApiError):
        bodies.take("a", 841)
    bodies.take("", 840)


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


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("keys", ["", " , ,"])
def test_without_keys_everyone_is_served(keys: str) -> None:
    assert ApiKeys(keys).tenant({}).name == ""
    assert ApiKeys(keys).tenant(bearer("anything")).name == ""
    assert not ApiKeys(keys).needed


def test_a_tenant_is_called_by_the_position_of_its_key() -> None:
    keys = ApiKeys("first, second,,third")
    assert keys.needed
    assert keys.tenant(bearer("first")).name == "1"
    assert keys.tenant({"authorization": "bearer  second"}).name == "2"
    assert keys.tenant({"x-api-key": "third"}).name == "3"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic first", "first", "Bearer firs"])
def test_what_is_no_key_is_refused(header: str) -> None:
    with pytest.raises(ApiError) as refused:
        ApiKeys("first").tenant({"authorization": header})
    assert refused.value.status == 401
    assert refused.value.code == "invalid_api_key"
    assert "first" not in refused.value.message


class Clock:
    """Seconds that pass only when a test sets them."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def limited(clock: Clock, **limits: int) -> Tenant:
    return Tenant("team", TenantLimits(**limits), clock)


def refusal_of(tenant: Tenant) -> ApiError:
    with pytest.raises(ApiError) as refused, tenant.place():
        pytest.fail("it was beyond its limit")
    assert refused.value.status == 429
    return refused.value


def test_requests_of_a_minute_are_limited() -> None:
    clock = Clock()
    tenant = limited(clock, requests_per_min=2)
    for left in ("1", "0"):
        with tenant.place():
            assert tenant.headers()["x-ratelimit-remaining-requests"] == left
    refused = refusal_of(tenant)
    assert refused.headers["retry-after"] == "30"
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.headers["x-ratelimit-reset-requests"] == "60.000s"
    clock.now_s = 30.0
    with tenant.place():
        pass
    refusal_of(tenant)


def test_tokens_are_reserved_as_predicted_and_settled_as_used() -> None:
    clock = Clock()
    tenant = limited(clock, tokens_per_min=600)
    with tenant.place() as grant, tenant.place() as other:
        assert grant is not None
        assert other is not None
        grant.reserve(400.0)
        with pytest.raises(ApiError) as refused:
            other.reserve(300.0)
        assert refused.value.headers["retry-after"] == "10"
        grant.settle(100.0)
        other.reserve(300.0)
        assert tenant.headers()["x-ratelimit-remaining-tokens"] == "200"
        other.settle(900.0)  # it used more than was left: others wait for it
        assert tenant.headers()["x-ratelimit-remaining-tokens"] == "0"
        clock.now_s = 40.0
        assert tenant.headers()["x-ratelimit-remaining-tokens"] == "0"
        clock.now_s = 100.0
        grant.settle(0.0)
        assert tenant.headers()["x-ratelimit-remaining-tokens"] == "600"


def test_who_has_no_limit_of_its_rate_is_told_of_none() -> None:
    only_concurrency = limited(Clock(), concurrency=1)
    with only_concurrency.place():
        assert not only_concurrency.headers()


def test_a_request_beyond_all_tokens_of_a_minute_is_served_when_all_are_there() -> None:
    clock = Clock()
    tenant = limited(clock, tokens_per_min=60)
    with tenant.place() as grant:
        assert grant is not None
        grant.reserve(1000.0)
        with pytest.raises(ApiError):
            grant.reserve(1.0)


def test_who_has_too_many_in_progress_is_told_when_one_will_end() -> None:
    clock = Clock()
    tenant = limited(clock, concurrency=2)
    with tenant.place() as first, tenant.place():
        assert refusal_of(tenant).headers["retry-after"] == "1"
        assert first is not None
        first.foretell(12.5)
        clock.now_s = 2.0
        assert refusal_of(tenant).headers["retry-after"] == "11"
    with tenant.place():
        pass


def test_models_may_be_limited() -> None:
    tenant = Tenant("team", TenantLimits(models=["a"]), time.monotonic)
    tenant.check_model("a")
    with pytest.raises(ApiError) as refused:
        tenant.check_model("b")
    assert (refused.value.status, refused.value.code) == (403, "model_not_allowed")


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_file_that_names_keys_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "keys.yaml"

    def write(text: str) -> None:
        file.write_text(text)
        clock.now_s += 2.0
        os.utime(file, ns=(0, int(clock.now_s * 1e9)))

    write(f"team-a: {{sha256: {digest('one')}, requests_per_min: 5}}")
    keys = ApiKeys(file=str(file), clock=clock)
    team = keys.tenant(bearer("one"))
    assert team.name == "team-a"
    write(
        f"team-a: {{sha256: {digest('one')}, requests_per_min: 5}}\n"
        f"team-b: {{sha256: {digest('two')}}}"
    )
    assert keys.tenant(bearer("two")).name == "team-b"
    assert keys.tenant(bearer("one")) is team  # its spending is kept
    write("team-a: {sha256: short}")
    assert keys.tenant(bearer("two")).name == "team-b"
    assert "team-a" not in caplog.text or "short" not in caplog.text
    assert "API keys not taken in" in caplog.text
    write(f"team-b: {{sha256: {digest('two')}}}")
    with pytest.raises(ApiError):
        keys.tenant(bearer("one"))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a: {sha256: xyz}", "a.sha256"),
        (f"a: {{sha256: {'ab' * 32}, colour: 1}}", "a.colour"),
        (f"a: {{sha256: {'ab' * 32}}}\nb: {{sha256: {'ab' * 32}}}", "same key"),
        ("a: 5", "api keys: a"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match=wrong):
        SchedulerSettings(api_keys_file=str(file))


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [("0.0.0.0", "", True), ("::", "", True), ("127.0.0.1", "", False), ("0.0.0.0", "k", False)],
)
def test_who_is_open_to_a_network_without_keys_is_warned(
    caplog: pytest.LogCaptureFixture, host: str, keys: str, warned: bool
) -> None:
    settings = SchedulerSettings(host=host, api_keys=keys)
    assert _api_keys(settings, OPEN).needed == bool(keys)
    assert ("there are no API keys" in caplog.text) is warned


def test_a_list_of_keys_names_nobody(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    settings = SchedulerSettings(api_keys_file=str(file))
    assert settings.api_keys.get_secret_value() == "one,two"
    assert not ApiKeys(file=str(file)).needed
