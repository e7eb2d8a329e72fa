"""What counts as a peer's answer."""

import grpc
import pytest

from foretell.services.scheduler.placing.peers import NoAnswer, answer_of


async def test_what_is_no_message_is_no_answer() -> None:
    async def undecodable() -> None:
        return None

    async def failing() -> None:
        code, nothing = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, nothing, nothing, "gone")

    async def good() -> str:
        return "message"

    assert await answer_of(good()) == "message"
    with pytest.raises(NoAnswer, match="decoded"):
        await answer_of(undecodable())
    with pytest.raises(NoAnswer, match="UNAVAILABLE: gone"):
        await answer_of(failing())
