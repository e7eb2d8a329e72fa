"""A Postgres server from Debian's package for tests, which can be killed."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT_S = 60.0
WHERE = "set FORETELL_POSTGRES to the folder of its programs, or install Debian's postgresql"


def programs() -> Path | None:
    """The folder with the server's programs; None if this machine has none."""
    given = os.environ.get("FORETELL_POSTGRES")
    if given:
        return Path(given)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


class Postgres:
    """One server that listens on a socket in its own folder, and on no port."""

    def __init__(self, folder: Path) -> None:
        bin_folder = programs()
        if bin_folder is None:
            pytest.skip(f"no Postgres here: {WHERE}")
        self._bin, self._folder = bin_folder, folder
        self._process: subprocess.Popen[bytes] | None = None
        # Postgres refuses to run as root.
        self._user = "nobody" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "--no-sync", "-A", "trust", "-U", "foretell", str(folder / "data"))
        self.url = f"postgresql://foretell@/postgres?host={folder}"

    def _run(self, *command: str) -> None:
        subprocess.run(
            [str(self._bin / command[0]), *command[1:]],
            check=True,
            user=self._user,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )

    def start(self) -> None:
        """Start the server and wait until it serves."""
        flags = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",  # a killed server loses nothing that the kernel has
            "shared_buffers": "16MB",
            "max_connections": "40",
        }
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *(str(self._bin / "postgres"), "-D", str(self._folder / "data")),
                    *(f"--{name}={value}" for name, value in flags.items()),
                ],
                user=self._user,
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + WAIT_S
        while not self._serves():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.02)

    def _serves(self) -> bool:
        found = subprocess.run(
            [str(self._bin / "pg_isready"), "-q", "-h", str(self._folder)], check=False
        )
        return found.returncode == 0

    def kill(self) -> None:
        """End the server as a crash would: at once, with all connections."""
        if self._process is not None:
            # After SIGKILL its children would end only later; SIGQUIT ends them with it.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(WAIT_S)
            self._process = None


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server. Skips the test if this machine has none."""
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        server = Postgres(Path(name))
        try:
            server.start()
            yield server
        finally:
            server.kill()
