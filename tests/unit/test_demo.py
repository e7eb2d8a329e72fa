"""What `foretell demo` shows about a load, and the chats that it sends."""

import io

from rich.console import Console

from foretell.tools.demo import Answered, errors, met
from foretell.workload.chats import chat_trace, shipped_chats


def answered(predicted: float | None, actual: float) -> Answered:
    return Answered(actual / 10, actual, predicted, predicted)


def shown(*parts: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(*parts)
    return console.file.getvalue()


def test_predictions_stand_beside_what_happened() -> None:
    found = met([answered(2.0, 4.0), answered(3.0, 4.0), answered(None, 9.0)])
    assert found["e2e"] == [(2.0, 4.0), (3.0, 4.0)]
    (line,) = (line for line in shown(errors(found)).splitlines() if " e2e " in line)
    assert line.split() == ["e2e", "2.50", "s", "4.00", "s", "38%", "48%"]


def test_the_chats_that_ship_are_short_and_of_two_kinds() -> None:
    chats = shipped_chats()
    assert len(chats) == len({chat.prompt for chat in chats}) == 240
    assert all(chat.prompt and chat.prompt_tokens > 0 < chat.output_tokens for chat in chats)
    assert [each.output_tokens for each in chat_trace().requests] == [
        chat.output_tokens for chat in chats
    ]
