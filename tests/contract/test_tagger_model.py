"""A length model behind the real service: inputs, adaptation, and models that cannot be loaded."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_tagger import WAIT_S, Tagger, running_model

from foretell.length.adapted import EncoderModel
from foretell.length.bins import BINS, bin_of
from foretell.length.conversation import Conversation
from foretell.services.tagger.server import TaggerLimits
from foretell.v1 import tagger_pb2


class FakeEncoder:
    """Predicts confidently that an answer has about as many tokens as the prompt has characters."""

    def __init__(self) -> None:
        self.asked: list[Conversation] = []

    def read(
        self, conversations: Sequence[Conversation], models: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        self.asked += conversations
        rows = np.full((len(conversations), BINS), 0.001)
        at = bin_of(np.array([c.characters for c in conversations]))
        rows[np.arange(len(rows)), at] += 1.0
        return rows / rows.sum(axis=1, keepdims=True), np.zeros((len(rows), 3))


async def observe(tagger: Tagger, request_id: str, output_tokens: int) -> None:
    observation = tagger_pb2.Observation(
        model_name="llama", prompt_tokens=9, output_tokens=output_tokens, request_id=request_id
    )
    await tagger.stub.Observe(tagger_pb2.ObserveRequest(observations=[observation]))


def median(answer: tagger_pb2.LengthEstimate) -> float:
    return next(q.tokens for q in answer.quantiles if q.level == 0.5)


async def test_the_conversation_reaches_the_model(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    async with running_model(
        tmp_path, EncoderModel(encoder), TaggerLimits(max_prompt_chars=4)
    ) as tagger:
        exchange = tagger_pb2.Exchange(prompt="before", answer="answered", answer_characters=900)
        await tagger.tag(
            "the prompt",
            system="be kind",
            earlier=[exchange] * 6,
            exchanges=9,
            stops=2,
            min_tokens=7,
            kind=tagger_pb2.REQUEST_KIND_STOP,
        )
    (read,) = encoder.asked
    assert (read.prompt, read.system, read.characters) == ("thpt", "bend", 10)
    assert (len(read.earlier), read.exchanges, read.stops) == (4, 9, 2)
    assert (read.min_tokens, read.kind) == (7, "stop")
    assert (read.earlier[0].prompt, read.earlier[0].answer_characters) == ("bere", 900)


async def test_what_was_answered_moves_what_is_expected(tmp_path: Path) -> None:
    """The serving model's answers are three times as long as the encoder predicts."""
    encoder = FakeEncoder()
    async with running_model(tmp_path, EncoderModel(encoder)) as tagger:
        before = median(await tagger.tag("x" * 200, model_name="other"))
        assert before == pytest.approx(200, rel=0.2)
        for number in range(120):
            size = 50 + 7 * (number % 40)
            await tagger.tag("x" * size, request_id=f"r{number}")
            await observe(tagger, f"r{number}", 3 * size)
        assert median(await tagger.tag("x" * 200)) == pytest.approx(600, rel=0.25)
        assert median(await tagger.tag("x" * 200, model_name="other")) == before
        limited = await tagger.tag("x" * 200, max_tokens=50)
        assert max(q.tokens for q in limited.quantiles) == 50.0
        await observe(tagger, "never asked about", 5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "/nowhere"], "tagger model '/nowhere'"),
        (["--model", "/a", "--checkpoint", "/b"], "name one"),
    ],
)
def test_a_model_that_cannot_serve_ends_the_start(flags: list[str], said: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "foretell.services.tagger", *flags],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.returncode == 1
    assert said in result.stderr


async def test_applications_are_told_apart_by_their_system_prompt(tmp_path: Path) -> None:
    """The encoder predicts the same for both, but one has short answers and one has long ones."""
    async with running_model(tmp_path, EncoderModel(FakeEncoder())) as tagger:
        for number in range(80):
            for system, tokens in (("Be brief.", 20), ("Tell all.", 900)):
                request_id = f"{system}{number}"
                await tagger.tag("x" * 150, system=system, request_id=request_id)
                await observe(tagger, request_id, tokens + number % 7)
        assert median(await tagger.tag("x" * 150, system="Be brief.")) < 40
        assert median(await tagger.tag("x" * 150, system="Tell all.")) > 600


async def test_tenants_are_told_apart_where_nothing_else_tells_applications(tmp_path: Path) -> None:
    async with running_model(tmp_path, EncoderModel(FakeEncoder())) as tagger:
        for number in range(80):
            for tenant, tokens in (("1", 20), ("2", 900)):
                await tagger.tag("x" * 150, tenant=tenant, request_id=f"{tenant} {number}")
                await observe(tagger, f"{tenant} {number}", tokens + number % 7)
        assert median(await tagger.tag("x" * 150, tenant="1")) < 40
        assert median(await tagger.tag("x" * 150, tenant="2")) > 600
