import asyncio

from foretell.policy import Urgency
from services.scheduler.placing.turns import Turn, Turns

LONG_S = 20.0


def urgency(arrived_s: float, priority: int = 0) -> Urgency:
    return Urgency(priority, arrived_s)


async def take(turns: Turns, at: Urgency, deadline_s: float = LONG_S) -> Turn:
    turn = await turns.take(at, deadline_s)
    assert turn is not None
    return turn


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_most_urgent_goes_first_whoever_asked_first() -> None:
    turns, order = Turns(), list[float]()
    first = await take(turns, urgency(0.0))

    async def place(at: Urgency) -> None:
        turn = await take(turns, at)
        order.append(at.arrived_s)
        turn.give()

    waiting = [urgency(3.0), urgency(2.0), urgency(9.0, priority=-1), urgency(1.0, priority=1)]
    tasks = [asyncio.create_task(place(at)) for at in waiting]
    await settle()
    assert order == []
    first.give()
    await asyncio.gather(*tasks)
    assert order == [9.0, 2.0, 3.0, 1.0]
    (await take(turns, urgency(0.0))).give()  # it is free again


async def test_a_turn_given_twice_is_given_once() -> None:
    turns = Turns()
    first = await take(turns, urgency(0.0))
    first.give()
    second = await take(turns, urgency(1.0))
    first.give()
    assert await turns.take(urgency(2.0), 0.0) is None
    second.give()


async def test_whoever_waits_too_long_goes_without_and_leaves_no_trace() -> None:
    turns = Turns()
    first = await take(turns, urgency(0.0))
    assert await turns.take(urgency(1.0), 0.001) is None
    first.give()
    (await take(turns, urgency(2.0))).give()


async def test_time_in_which_the_holder_waits_does_not_count() -> None:
    turns = Turns()
    first = await take(turns, urgency(0.0))
    holding = asyncio.create_task(first.wait_for_news(LONG_S))
    second = asyncio.create_task(turns.take(urgency(1.0), 0.001))
    await asyncio.sleep(0.05)  # many of its deadlines
    assert not second.done()
    turns.news()
    await holding
    await asyncio.sleep(0.05)  # it asks again
    assert not second.done()
    first.give()
    assert await second is not None


async def test_news_wakes_the_holder_and_also_nothing_does_after_a_while() -> None:
    turn = await take(turns := Turns(), urgency(0.0))
    turns.news()  # came while predictors were asked
    async with asyncio.timeout(LONG_S / 2):
        await turn.wait_for_news(LONG_S)
        await turn.wait_for_news(0.001)
    turn.give()


async def test_a_more_urgent_one_passes_the_holder_by() -> None:
    turns = Turns()
    held = await take(turns, urgency(1.0))
    holding = asyncio.create_task(held.wait_for_news(LONG_S))
    await settle()
    urgent = asyncio.create_task(turns.take(urgency(2.0, priority=-1), LONG_S))
    later = asyncio.create_task(turns.take(urgency(2.0), LONG_S))
    await settle()
    turns.news()
    turn = await urgent
    assert turn is not None
    assert not holding.done()
    turn.give()
    await holding
    assert not later.done()
    held.give()
    assert await later is not None


async def test_whoever_leaves_while_waiting_does_not_keep_the_turn() -> None:
    turns = Turns()
    first = await take(turns, urgency(0.0))
    gone = asyncio.create_task(turns.take(urgency(1.0), LONG_S))
    await settle()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    given_too_late = asyncio.create_task(turns.take(urgency(2.0), LONG_S))
    await settle()
    first.give()
    given_too_late.cancel()  # its turn has come, but it has not run since
    await asyncio.gather(given_too_late, return_exceptions=True)
    (await take(turns, urgency(3.0))).give()


async def test_a_holder_that_leaves_gives_its_turn_once_at_most() -> None:
    turns = Turns()
    held = await take(turns, urgency(1.0))

    async def place() -> None:
        try:
            await held.wait_for_news(LONG_S)
        finally:
            held.give()

    placing = asyncio.create_task(place())
    await settle()
    urgent = asyncio.create_task(turns.take(urgency(0.0), LONG_S))
    await settle()
    turns.news()
    turn = await urgent
    assert turn is not None
    placing.cancel()  # it has let the urgent one by, and waits for it
    await asyncio.gather(placing, return_exceptions=True)
    assert await turns.take(urgency(5.0), 0.001) is None
    turn.give()
    (await take(turns, urgency(6.0))).give()
