"""The length model that is shipped with the tagger."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from foretell.length.conversation import Conversation, EarlierTurn
from foretell.services.tagger.models import folder_of
from foretell.tools.length.dataset import Example
from foretell.tools.length.taggers import Tagger, load_tagger

MOST_BYTES = 25_000_000


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return load_tagger("shipped")


def median(tagger: Tagger, prompt: str, *earlier: tuple[str, str]) -> float:
    exchanges = tuple(EarlierTurn(asked, answer, len(answer)) for asked, answer in earlier)
    tokens = len(prompt) // 4 + sum(len(asked + answer) // 4 for asked, answer in earlier)
    conversation = Conversation(
        prompt, len(prompt), tokens, earlier=exchanges, exchanges=len(exchanges)
    )
    (estimate,) = tagger.estimate([Example(conversation, 1, False, "some model")])
    assert estimate.source == "model"
    return dict(estimate.quantiles)[0.5]


def test_what_is_asked_for_tells_how_long_the_answer_will_be(tagger: Tagger) -> None:
    short = "Is Paris the capital of France? Answer yes or no only."
    essay = "Write a detailed essay of 1000 words on the history of the printing press."
    assert median(tagger, short) < 60
    assert median(tagger, essay) > 350


def test_earlier_answers_tell_it_too(tagger: Tagger) -> None:
    prompt = "Now the same for the second one, please."
    brief = [("And the first one?", "It is blue.")] * 3
    long = [("And the first one?", "It is blue, as was found at great length. " * 40)] * 3
    assert median(tagger, prompt, *long) > 2.5 * median(tagger, prompt, *brief)


def test_it_is_small_says_where_it_is_from_and_needs_no_torch() -> None:
    folder = folder_of("shipped")
    assert sum(file.stat().st_size for file in folder.iterdir()) < MOST_BYTES
    assert "sharegpt_val" in (folder / "README.md").read_text()
    assert "ShareGPT" in (folder / "NOTICE.md").read_text()
    code = (
        "import sys; from foretell.tools.length.taggers import load_tagger; "
        "load_tagger('shipped'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_that_do_not_belong_together_are_told_at_the_start(tmp_path: Path) -> None:
    """The tokenizer has tokens that the weights do not know."""
    folder = tmp_path / "model"
    shutil.copytree(folder_of("shipped"), folder)
    stranger = Tokenizer(models.WordLevel({"<unk>": 10_000_000}, unk_token="<unk>"))
    stranger.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match=str(folder)):
        load_tagger(str(folder))
