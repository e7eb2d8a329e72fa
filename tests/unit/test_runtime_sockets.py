"""The services' listening sockets."""

import asyncio
import socket

from foretell.services.process import runtime


async def test_small_writes_to_accepted_connections_do_not_wait_for_each_other() -> None:
    """With Nagle's algorithm, a body waits 40 ms until the headers before it are acknowledged."""
    no_delay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        no_delay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with runtime.bind("127.0.0.1", 0) as sock:
        async with await asyncio.start_server(connected, sock=sock) as server:
            await server.start_serving()
            _, writer = await asyncio.open_connection(*sock.getsockname())
            assert await no_delay
            writer.close()
            await writer.wait_closed()
