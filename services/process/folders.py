"""Where a running engine or cluster keeps its files, sockets and ports."""

import contextlib
import errno
import fcntl
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

_UNIX_PATH_BYTES = 107  # sockaddr_un.sun_path less its final zero, on Linux
_FIRST_PORT = 20_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextlib.contextmanager
def run_folder(configured: str) -> Iterator[Path]:
    """Yield the folder `configured`, made if missing; if "", a temporary one, which is kept after
    an error if it has logs.
    """
    if configured:
        path = Path(configured).absolute()
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    path = Path(tempfile.mkdtemp(prefix="foretell-"))
    kept = False
    try:
        yield path
    except BaseException:
        kept = any(path.glob("*.log"))
        raise
    finally:
        if not kept:
            shutil.rmtree(path, ignore_errors=True)


def private_folder(path: Path) -> None:
    """Make a folder, and its missing parents, that no other user may enter."""
    for each in (*reversed(path.parents), path):
        each.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would make parents open to all


@contextlib.contextmanager
def socket_folder(run_dir: Path, longest_name: str) -> Iterator[Path]:
    """Yield `run_dir`, or a short link to it if a socket's path would be too long."""
    if len(os.fsencode(run_dir / longest_name)) <= _UNIX_PATH_BYTES:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="foretell-", dir="/tmp") as path:
        short = Path(path) / "run"
        short.symlink_to(run_dir.absolute())
        yield short


@contextlib.contextmanager
def only_one(lock: Path, refusal: Exception) -> Iterator[None]:
    """Hold a file's lock while the block runs; raises `refusal` if another process holds it."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal from error
        yield


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically: also after a crash a reader finds the old text or the new one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def file_version(path: Path) -> tuple[int, int]:
    """Modification time (ns) and inode, which change when a file is written or replaced."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino


def free_ports(host: str, count: int) -> list[int]:
    """Find `count` consecutive free ports that the kernel does not use for outgoing connections.

    A server that is restarted on such a port finds it free again. Two processes that look for
    ports at once rarely collide, because each starts at a random port. Raises OSError if none are
    left, or if `host` is not an address of this machine.
    """
    end = int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768
    first = min(_FIRST_PORT, max(end - 10_000, 1_024))
    candidates = range(first, max(end, first + 10_000))
    offset = random.randrange(len(candidates))
    found: list[int] = []
    for step in range(len(candidates)):
        port = candidates[(offset + step) % len(candidates)]
        if found and port != found[-1] + 1:
            found.clear()
        if is_free(host, port):
            found.append(port)
        else:
            found.clear()
        if len(found) == count:
            return found
    raise OSError(f"no {count} ports in a row are free on {host}")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now. Raises OSError if `host` is not an address here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # a port that another has bound but not yet opened is refused here
        except PermissionError:
            return False
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True
