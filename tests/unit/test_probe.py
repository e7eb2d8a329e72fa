"""Small HTTP requests of a supervisor."""

import socket
import threading

import pytest

from foretell.services.process.probe import get
from foretell.services.process.runtime import bind


@pytest.mark.parametrize("url", ["http://127.0.0.1:port/", "http://[::1/", "ftp://127.0.0.1/"])
def test_an_address_that_is_none_is_an_os_error(url: str) -> None:
    with pytest.raises(OSError, match="not an HTTP address"):
        get(url, 1.0)


def test_the_query_is_sent() -> None:
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                heads.append(peer.recv(4096))
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

        thread = threading.Thread(target=answer)
        thread.start()
        assert get(f"http://127.0.0.1:{server.getsockname()[1]}/a?b=c", 10.0) == (200, b"ok")
        thread.join()
    assert heads[0].startswith(b"GET /a?b=c HTTP/1.1")


def test_a_port_that_another_process_listens_on_is_named() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(SystemExit, match="cannot listen on"):
        bind("127.0.0.1", first.getsockname()[1])
