"""A port of 0 gets two free ports: one for gRPC, one for frames beside it."""

import socket

import pytest

from foretell.services.process import frames
from foretell.services.process.folders import is_free
from foretell.services.process.frames import frames_address, frames_port, with_free_port


def test_a_port_whose_neighbour_is_taken_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    crowded, good = (int(with_free_port("127.0.0.1:0").rpartition(":")[2]) for _ in range(2))
    offered = [[crowded], [good]]
    monkeypatch.setattr(frames, "free_ports", lambda host, count: offered.pop(0))
    with socket.create_server(("127.0.0.1", frames_port(crowded))):
        assert with_free_port("127.0.0.1:0") == f"127.0.0.1:{good}"
    assert not offered


def test_both_ports_are_free() -> None:
    address = with_free_port("127.0.0.1:0")
    for each in (address, frames_address(address)):
        host, _, port = each.rpartition(":")
        assert is_free(host, int(port))


@pytest.mark.parametrize(
    "address", ["unix:/tmp/s", "127.0.0.1:8300", "[::1]:8300", "192.0.2.1:0", "nowhere.invalid:0"]
)
def test_other_addresses_stay(address: str) -> None:
    assert with_free_port(address) == address
