"""`foretell length eval`: measures taggers on a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.length import PRIOR_TOKENS
from foretell.length.conversation import Conversation
from foretell.model import LengthEstimate
from foretell.tools.length.dataset import Example
from foretell.tools.length.evaluate import evaluate, running_medians
from foretell.tools.length.taggers import HistoryTagger

SCORES = [
    *("mae", "error_rate", "acc_25", "acc_50", "acc_100"),
    *("spearman", "kendall", "pinball", "coverage"),
]


def example(prompt: str, tokens: int, model: str = "m", **conversation: int) -> Example:
    facts = {"characters": len(prompt), "prompt_tokens": 8, **conversation}
    return Example(Conversation(prompt, **facts), tokens, False, model)


class Notes:
    """A tagger that records its use; its estimate is the number of its observations so far."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.observed: list[Example] = []

    def estimate(self, examples: Sequence[Example]) -> list[LengthEstimate]:
        self.asked.append(len(examples))
        return [LengthEstimate(float(len(self.observed)), source="model") for _ in examples]

    def observe(self, answered: Example) -> None:
        self.observed.append(answered)


def run(tagger: Notes | HistoryTagger, examples: list[Example], stream: bool) -> dict[str, Any]:
    return evaluate(tagger, examples, stream=stream, show=lambda what, done, total: None)


def test_with_stream_every_answer_follows_its_own_estimate() -> None:
    examples = [example(f"p{i}", 100 + i) for i in range(5)]
    tagger = Notes()
    found = run(tagger, examples, stream=True)
    assert tagger.asked == [1] * 5
    assert tagger.observed == examples
    assert found["mae"] == 100.0  # estimate i is i


def test_without_stream_nothing_is_learnt() -> None:
    tagger = Notes()
    found = run(tagger, [example(f"p{i}", 100) for i in range(50)], stream=False)
    assert (tagger.observed, sum(tagger.asked), found["mae"]) == ([], 50, 100.0)
    assert list(found) == [*SCORES, "cpu_ms", "count"]


def test_with_stream_each_model_is_beside_its_own_running_median() -> None:
    lengths = {"short": 10, "long": 500}
    examples = [example("p", lengths[model], model) for _ in range(310) for model in lengths]
    found = run(HistoryTagger(), examples, stream=True)
    for model, tokens in lengths.items():
        figures = found["models"][model]
        assert list(figures) == ["mae", "coverage_after_300", "running_median_mae"]
        assert figures["coverage_after_300"] == {"50": 1.0, "80": 1.0, "95": 1.0}
        assert figures["running_median_mae"] == abs(PRIOR_TOKENS - tokens) / 310
        assert figures["mae"] < 20
    few = run(HistoryTagger(), examples[:600], stream=True)
    assert few["models"]["short"]["coverage_after_300"] is None


def test_running_medians() -> None:
    found = running_medians(np.array([5.0, 1.0, 9.0, 2.0]))
    assert found.tolist() == [PRIOR_TOKENS, 5.0, 3.0, 5.0]


def command(*args: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; a failing command's message is its exit value."""
    result = CliRunner().invoke(app, ["length", "eval", *map(str, args)])
    if result.exit_code:
        assert isinstance(result.exception, SystemExit)
        return result.exit_code, "", str(result.exception)
    return result.exit_code, result.stdout, result.stderr


def test_the_command(tmp_path: Path) -> None:
    file, train = tmp_path / "file.jsonl", tmp_path / "train.jsonl"
    rows = [{"prompt": f"prompt {i}", "out_tok": 10 * i + 10, "model": "m"} for i in range(12)]
    file.write_text("\n".join(map(json.dumps, rows)))
    train.write_text("\n".join(json.dumps({**row, "out_tok": 100}) for row in rows))

    code, out, _ = command(file, "--stream", "--limit", 10)
    found = json.loads(out)
    assert (code, found["count"], list(found["models"])) == (0, 10, ["m"])
    assert found["cpu_ms"] >= 0

    code, out, _ = command(file, "--train", train, "--model", "none")
    found = json.loads(out)
    assert (code, found["count"], found["spearman"]) == (0, 12, None)
    # The history has learnt from the training file, too: 100 tokens, whatever the prompt.
    assert found["mae"] == 40
    assert "models" not in found


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_text('{"prompt": "p", "out_tok": 1}\n{"prompt": "p"}\n')
    code, out, err = command(file)
    assert (code, out) == (1, "")
    assert "length eval: " in err
    assert "line 2: out_tok: Field required" in err
    file.write_text('{"prompt": "p", "out_tok": 1}\n')
    assert "--model none" in command(file, "--train", file)[2]
    for model in (tmp_path / "nothing", tmp_path):
        code, out, err = command(file, "--model", model)
        assert (code, out) == (1, "")
        assert str(model) in err
