"""With port 0, a process gets a port whose port for frames is free, too."""

import pytest

from foretell.services.process.folders import is_free
from foretell.services.process.frames import frames_address, with_free_port


def test_the_port_for_frames_is_free() -> None:
    host, _, port = frames_address(with_free_port("127.0.0.1:0")).rpartition(":")
    assert is_free(host, int(port))


@pytest.mark.parametrize(
    "address", ["unix:/tmp/s", "127.0.0.1:8300", "[::1]:8300", "192.0.2.1:0", "nowhere.invalid:0"]
)
def test_other_addresses_stay(address: str) -> None:
    assert with_free_port(address) == address
