"""Limits that replicas keep together, without sockets: the test delivers the messages."""

import hashlib
from contextlib import ExitStack
from math import nan
from pathlib import Path

import pytest

from foretell.openai.errors import ApiError
from foretell.services.scheduler.tenants import spending
from foretell.services.scheduler.tenants.auth import ApiKeys
from foretell.services.scheduler.tenants.spending import Spending
from foretell.tenants.limits import TenantLimits
from foretell.tenants.quota import Tenant
from foretell.v1 import predictor_pb2


class Replica:
    """One caller's limits in one replica."""

    def __init__(self, now_s: list[float], **limits: int) -> None:
        self.spending = Spending(lambda: [self.tenant], lambda: now_s[0])
        self.tenant = Tenant(
            "team", TenantLimits(**limits), lambda: now_s[0], self.spending.in_progress
        )

    def asks(self, tokens: float = 0.0) -> None:
        with self.tenant.place() as grant:
            assert grant is not None
            grant.reserve(tokens)

    def is_refused(self) -> bool:
        try:
            self.asks()
        except ApiError:
            return True
        return False

    def left(self, what: str) -> int:
        return int(self.tenant.headers()[f"x-ratelimit-remaining-{what}"])


def meet(*replicas: Replica) -> None:
    """Each replica sends its message to all others, twice."""
    told = [each.spending.message() for each in replicas]
    for message in told:
        for each in 2 * replicas:
            if message is not None:
                each.spending.hear(message)


def test_what_was_spent_elsewhere_is_spent_and_once_only() -> None:
    now_s = [0.0]
    one, other = (Replica(now_s, requests_per_min=60, tokens_per_min=600) for _ in range(2))
    meet(one, other)
    for _ in range(3):
        one.asks(100.0)
        other.asks(50.0)
        meet(one, other)
        assert one.left("requests") == other.left("requests")
        assert one.left("tokens") == other.left("tokens")
    assert (one.left("requests"), one.left("tokens")) == (54, 150)
    with one.tenant.place() as grant:
        assert grant is not None
        grant.reserve(100.0)
        meet(one, other)
        assert other.left("tokens") == 50
        grant.settle(20.0)
    meet(one, other)
    assert (one.left("tokens"), other.left("tokens")) == (130, 130)
    now_s[0] = 30.0
    meet(one, other)
    assert (one.left("tokens"), other.left("tokens")) == (430, 430)


def test_over_minutes_a_caller_gets_its_rate_however_it_goes_about() -> None:
    """Requests admitted before replicas had heard of each other's are made up for."""
    now_s = [0.0]
    replicas = [Replica(now_s, requests_per_min=60) for _ in range(3)]
    meet(*replicas)
    served = 0
    for step in range(5 * 60 * 5):  # five minutes; each step ends with messages
        now_s[0] = step / 5
        served += sum(not each.is_refused() for each in replicas for _ in range(100))
        meet(*replicas)
    # A bucket, five minutes' refill, and what two admitted before they had heard of the third's.
    assert 60 + 5 * 60 - 3 <= served <= 60 + 5 * 60 + 2 * 60


def test_requests_in_progress_elsewhere_count_until_their_replica_is_silent() -> None:
    now_s = [0.0]
    one, other = (Replica(now_s, concurrency=2) for _ in range(2))
    with ExitStack() as held:
        held.enter_context(one.tenant.place())
        meet(one, other)
        held.enter_context(other.tenant.place())
        assert other.is_refused()
        meet(one, other)
        assert one.is_refused()
        held.close()
        meet(one, other)
        assert not other.is_refused()
        held.enter_context(one.tenant.place())
        held.enter_context(one.tenant.place())
        meet(one, other)
        now_s[0] = spending.SILENT_S / 2
        meet(one, other)  # it is alive, and its requests still count
        now_s[0] = spending.SILENT_S
        assert other.is_refused()
        now_s[0] = 2 * spending.SILENT_S
        assert not other.is_refused()


def test_a_replica_that_starts_gives_nobody_a_bucket_anew() -> None:
    now_s = [0.0]
    one = Replica(now_s, requests_per_min=10, tokens_per_min=100)
    for _ in range(10):
        one.asks(7.0)
    new = Replica(now_s, requests_per_min=10, tokens_per_min=100)
    meet(one, new)
    assert (new.left("requests"), new.left("tokens")) == (0, 30)
    assert new.is_refused()


def test_little_is_told_where_there_is_nothing_to_tell() -> None:
    now_s = [100.0]
    one = Replica(now_s, tokens_per_min=60)
    empty = one.spending.message()
    assert empty is not None  # it shows that the replica is alive
    assert not empty.spent
    now_s[0] += 0.5
    assert one.spending.message() is None
    with one.tenant.place() as grant:
        assert grant is not None
        grant.reserve(30.0)
        grant.settle(30.0)
    told = one.spending.message()
    assert told is not None
    assert [each.tokens for each in told.spent] == [30.0]
    again = one.spending.message()
    assert again is not None
    assert [each.tokens for each in again.spent] == [0.0]
    now_s[0] += 60.0
    last = one.spending.message()
    assert last is not None
    assert not last.spent
    assert ApiKeys("a,b").spending.message() is None


def test_nonsense_changes_nothing() -> None:
    one = Replica([0.0], tokens_per_min=60)
    caller = one.tenant.caller
    for number, spent in enumerate(
        [
            predictor_pb2.Spent(caller=caller, tokens=nan),
            predictor_pb2.Spent(caller=caller, tokens_left=nan),
            predictor_pb2.Spent(caller=caller + 1, tokens=60.0),
        ]
    ):
        message = predictor_pb2.Spending(replica=7, number=number + 1, spent=[spent])
        one.spending.hear(message)
    assert one.left("tokens") == 60


def test_a_file_of_keys_has_its_callers_told_by_no_name(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"key").hexdigest()
    file.write_text(f"team-a: {{sha256: {digest}, concurrency: 1}}")
    one, other = ApiKeys(file=str(file)), ApiKeys(file=str(file))
    headers = {"x-api-key": "key"}
    with one.tenant(headers).place():
        told = one.spending.message()
        assert told is not None
        assert b"team-a" not in told.SerializeToString()
        assert digest not in str(told)
        other.spending.hear(told)
        with pytest.raises(ApiError), other.tenant(headers).place():
            pytest.fail("the other replica serves it already")
