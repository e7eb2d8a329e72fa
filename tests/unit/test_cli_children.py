"""Child processes, their groups and logs, and the pace of restarts."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from foretell.services.process.children import Child, RestartPacer, describe_exit
from foretell.services.process.folders import free_ports, is_free, run_folder, socket_folder
from tests.processes import is_running, wait_until

_PARENT_OF_A_STUBBORN_ONE = """
import signal, subprocess, sys, time
stubborn = subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("stubborn", flush=True)
time.sleep(300)
'''])
print(stubborn.pid, flush=True)
time.sleep(300)
"""


async def test_stop_ends_what_the_child_has_started(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = await Child.spawn("parent", [sys.executable, "-c", _PARENT_OF_A_STUBBORN_ONE], log)
    await wait_until(lambda: "stubborn" in log.read_text())
    grandchild = int(next(line for line in log.read_text().splitlines() if line.isdigit()))
    assert os.getsid(child.pid) == child.pid, "Ctrl-C in our terminal must not reach it"

    await child.stop(grace_s=5.0)

    assert child.exit_code == -signal.SIGTERM
    await wait_until(lambda: not is_running(grandchild))


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(300)"
    )
    log = tmp_path / "child.log"
    child = await Child.spawn("stubborn", [sys.executable, "-c", code], log)
    await wait_until(lambda: "up" in log.read_text())
    await child.stop(grace_s=0.1)
    assert child.exit_code == -signal.SIGKILL


async def test_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    code = "import os; [print('line', i) for i in range(50)]; raise SystemExit('no such profile')"
    child = await Child.spawn("engine-0", [sys.executable, "-c", code], tmp_path / "child.log")
    assert await child.wait() == 1
    message = str(child.failure(describe_exit(1)))
    assert message.startswith("engine-0 exited with code 1; last lines of ")
    assert message.endswith("| no such profile")
    assert "line 49" in message
    assert "line 5\n" not in message


async def test_a_large_log_is_rotated_at_the_next_start(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    with log.open("wb") as file:
        file.truncate((16 << 20) + 1)
    child = await Child.spawn("child", [sys.executable, "-c", "print('new')"], log)
    await child.wait()
    assert log.read_text() == "new\n"
    assert (tmp_path / "child.log.1").stat().st_size == (16 << 20) + 1


def test_exits_are_told_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"


def test_delays_double_up_to_ten_seconds_and_calm_resets_them() -> None:
    pacer = RestartPacer()
    now_s, delays = 100.0, []
    for _ in range(6):
        delays.append(pacer.delay_s(now_s))
        now_s += delays[-1]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert pacer.delay_s(now_s + 61.0) == 0.5


def test_a_folder_too_deep_for_sockets_has_a_short_path(tmp_path: Path) -> None:
    name = "engine-12.predictor.sock"
    with socket_folder(tmp_path, name) as path:
        assert path == tmp_path
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with socket_folder(deep, name) as path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path / name))
        assert path != deep
        assert (deep / name).exists()
    assert not path.exists()


def test_an_unnamed_run_folder_goes_with_success_and_stays_after_an_error() -> None:
    with run_folder("") as path:
        (path / "log").write_text("fine")
    assert not path.exists()
    with pytest.raises(RuntimeError), run_folder("") as path:
        raise RuntimeError
    assert not path.exists(), "there was nothing in it that says why"
    with pytest.raises(RuntimeError), run_folder("") as path:  # noqa: PT012
        (path / "engine-0.log").touch()
        raise RuntimeError
    shutil.rmtree(path)


def test_a_child_whose_parent_has_ended_before_it_could_ask_ends_too() -> None:
    command = [sys.executable, "-m", "foretell.services.process.exec_child", "echo", "lives"]
    environment = {**os.environ, "FORETELL_PARENT_PID": "1"}  # its parent is this process
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the parent process has already ended" in done.stderr
    environment["FORETELL_PARENT_PID"] = str(os.getpid())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "lives\n"


def test_free_ports_are_below_those_the_kernel_hands_out_and_not_in_use() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports("127.0.0.1", 5)
    assert len(set(ports)) == 5
    assert all(port < low for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not is_free("127.0.0.1", ports[0])
    assert is_free("127.0.0.1", ports[1])


def test_a_host_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        free_ports("192.0.2.1", 1)
