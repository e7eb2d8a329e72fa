"""What `foretell demo` shows of a load, and the chats that it sends."""

import io

import pytest
from rich.console import Console

from foretell.tools.demo.load import Answered
from foretell.tools.demo.shown import errors, met, policies, scatter
from foretell.workload.chats import Chat, chat_trace, shipped_chats


def answered(predicted: float | None, actual: float) -> Answered:
    chat = Chat("Why?", 4, 10)
    return Answered(chat, 0.0, actual / 10, actual, 10, "engine-0", predicted, predicted)


def shown(*parts: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(*parts)
    return console.file.getvalue()


def test_predictions_stand_beside_what_happened() -> None:
    found = met([answered(2.0, 4.0), answered(3.0, 4.0), answered(None, 9.0)])
    assert found["e2e"] == [(2.0, 4.0), (3.0, 4.0)]
    (line,) = (line for line in shown(errors(found)).splitlines() if " e2e " in line)
    assert line.split() == ["e2e", "2.50", "s", "4.00", "s", "38%", "48%"]


def test_policies_are_compared_by_means_and_tails() -> None:
    text = shown(policies({"slo": [(0.1, 1.0), (0.3, 3.0)]}))
    (line,) = (line for line in text.splitlines() if " slo " in line)
    assert line.split() == ["slo", "0.20", "s", "0.30", "s", "2.00", "s", "2.98", "s"]


@pytest.mark.parametrize("points", [[(1.0, 1.0)], [(0.1, 0.2), (100.0, 90.0)], [(1e-3, 1e3)]])
def test_points_are_drawn_within_their_frame(points: list[tuple[float, float]]) -> None:
    lines = scatter(points, 40, 10).plain.splitlines()
    assert len(lines) == 13
    assert max(map(len, lines)) == 41
    assert "".join(lines).count("●") == len(points)


def test_on_the_dots_both_agree() -> None:
    lines = scatter([(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)], 30, 10).plain.splitlines()
    places = [(row, line.index("●")) for row, line in enumerate(lines) if "●" in line]
    assert len(places) == 3
    (_, left), (_, middle), (_, right) = places[::-1]
    assert abs(middle - (left + right) / 2) <= 1


def test_the_chats_that_ship_are_short_and_of_two_kinds() -> None:
    chats = shipped_chats()
    assert len(chats) == len({chat.prompt for chat in chats}) == 240
    assert all(chat.prompt and chat.prompt_tokens > 0 < chat.output_tokens for chat in chats)
    assert [each.output_tokens for each in chat_trace().requests] == [
        chat.output_tokens for chat in chats
    ]
