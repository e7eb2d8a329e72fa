"""One active provisioner: the lease is taken, kept, passed on at a death or hang, never shared."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foretell.services.provisioner.lease import LEASE_S, FileLease, LeaseLost

HOLD = """
import sys, time
from pathlib import Path
from foretell.services.provisioner.lease import FileLease
lease = FileLease(Path(sys.argv[1]), "other")
assert lease.take()
print(lease.epoch, flush=True)
time.sleep(600)
"""


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replica(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], FileLease]]:
    """Create replicas that share a folder."""
    made: list[FileLease] = []

    def make() -> FileLease:
        made.append(FileLease(tmp_path, str(len(made)), clock=clock))
        return made[-1]

    yield make
    for lease in made:
        lease.release()


def test_one_holds_it_and_another_gets_it_when_it_is_given_back(
    replica: Callable[[], FileLease],
) -> None:
    first, second = replica(), replica()
    assert [first.take(), first.take(), second.take()] == [True, True, False]
    with first.guarded():
        pass
    with pytest.raises(LeaseLost), second.guarded():
        pytest.fail("it was never the active one")
    first.release()
    assert second.take()
    assert second.epoch == 2
    assert not first.take()


def test_who_hangs_is_passed_over_and_writes_nothing_any_more(
    replica: Callable[[], FileLease], clock: Clock
) -> None:
    hung, standby = replica(), replica()
    assert hung.take()
    assert not standby.take()
    clock.now_s = LEASE_S
    assert hung.take()  # it renews in time: the other one's wait starts here
    assert not standby.take()
    clock.now_s += LEASE_S
    assert not standby.take()
    clock.now_s += 0.1
    assert standby.take()
    with pytest.raises(LeaseLost), hung.guarded():
        pytest.fail("it wrote under a lease that was passed on")
    assert hung.epoch == 0
    assert not hung.take()
    with standby.guarded():
        pass


def test_who_is_killed_is_followed_at_once(
    tmp_path: Path, replica: Callable[[], FileLease]
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        standby = replica()
        assert not standby.take()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert standby.take()
    assert standby.epoch == 2
    assert [path.name for path in tmp_path.glob("holder-*")] == ["holder-2.lock"]
