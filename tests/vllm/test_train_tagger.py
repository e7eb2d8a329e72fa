"""`foretell train-tagger` on answers whose length depends on a single word."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from rich.console import Console  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

from foretell.length.adapted import EncoderModel  # noqa: E402
from foretell.length.bins import BINS  # noqa: E402
from foretell.length.conversation import LengthQuestion  # noqa: E402
from foretell.services.tagger.apart import EncoderApart  # noqa: E402
from foretell.services.tagger.reading import (  # noqa: E402
    DESCRIPTION,
    Description,
    PromptReader,
    feature_rows,
    marks_of,
    scales_of,
)
from foretell.tools.length.dataset import read_examples  # noqa: E402
from foretell.tools.length.taggers import load_tagger  # noqa: E402
from foretell.tools.train.inputs import Examples, hold_out, prepare  # noqa: E402
from foretell.tools.train.loop import logits_of, train  # noqa: E402
from foretell.tools.train.network import LengthModel, OrdinalLoss, make_encoder  # noqa: E402
from foretell.tools.train.options import SCRATCH, TrainOptions  # noqa: E402
from foretell.tools.train.run import train_tagger  # noqa: E402
from foretell.tools.train.state import TrainingProgress  # noqa: E402

WORDS = ("brief", "thorough", "tea", "ships", "rivers", "bees", "glass", "maps")
LENGTHS = {"brief": 10, "thorough": 300}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 answers, and a tokenizer beside them."""
    folder, rng = tmp_path_factory.mktemp("answers"), Random(1)
    lines = []
    for _ in range(400):
        kind = rng.choice(list(LENGTHS))
        topics = rng.choices(WORDS[2:], k=rng.randint(1, 12))
        length = max(1, round(LENGTHS[kind] * rng.lognormvariate(0.0, 0.2)))
        row = {"prompt": " ".join([kind, *topics]), "out_tok": length, "model": "m"}
        lines.append(json.dumps(row))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    vocabulary = {word: i for i, word in enumerate(("<pad>", "<s>", "</s>", "<unk>", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def options(answers: Path, out: Path, **changes: object) -> TrainOptions:
    return TrainOptions(
        train=answers / "train.jsonl",
        out=out,
        encoder=SCRATCH,
        tokenizer=str(answers / "tokenizer.json"),
        **{"layers": 1, "epochs": 3, "batch": 16, "held_out": 0.15, "threads": 1, **changes},  # type: ignore[arg-type]
    )


def test_what_was_learnt_is_served_as_it_was_trained(answers: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    console = Console(quiet=True)
    scores = train_tagger(options(answers, out, epochs=6), [answers / "train.jsonl"], console)
    assert set(scores) == {"held out", "train.jsonl"}
    spearman = scores["held out"].spearman
    assert spearman is not None
    assert spearman > 0.6
    examples = read_examples(answers / "train.jsonl")
    for example, estimate in zip(examples, load_tagger(str(out)).estimate(examples), strict=True):
        expected = LENGTHS[example.conversation.prompt.split()[0]]
        assert dict(estimate.quantiles)[0.5] == pytest.approx(expected, rel=0.5)
    # The service loads it, too, and gives the same estimate for an answer without any feedback yet.
    encoder = EncoderApart(out)
    served = EncoderModel(encoder)
    question = LengthQuestion(examples[0].model_name, examples[0].conversation)
    (found,) = served.infer([question])
    assert served.estimates([(question, found)]) == load_tagger(str(out)).estimate(examples[:1])
    encoder.close()
    assert "Spearman" in (out / "README.md").read_text()
    # A finished run has no steps left: the same command returns the same result.
    assert (
        train_tagger(options(answers, out, epochs=6), [], console)["held out"] == scores["held out"]
    )
    with pytest.raises(ValueError, match=r"other options \(seed\)"):
        train_tagger(options(answers, out, epochs=6, seed=1), [], console)


def test_a_student_learns_from_its_teachers_too(answers: Path, tmp_path: Path) -> None:
    console, teacher, out = Console(quiet=True), tmp_path / "teacher", tmp_path / "student"
    train_tagger(options(answers, teacher, epochs=6), [], console)
    # No answer is in its own target: all that is learnt comes from the teacher.
    given = options(answers, out, epochs=6, seed=1, teachers=(str(teacher),), taught=1.0)
    scores = train_tagger(given, [], console)
    spearman = scores["held out"].spearman
    assert spearman is not None
    assert spearman > 0.6
    kept, _ = hold_out(read_examples(given.train), given.held_out)
    taught = np.load(out / "training" / "taught.npy", allow_pickle=False)
    assert taught.shape == (len(kept), BINS)
    assert taught.sum(axis=1) == pytest.approx(1.0, abs=1e-3)
    assert (
        "100% of the target is what a model trained before said" in (out / "README.md").read_text()
    )


def test_a_teacher_that_is_none_is_refused(answers: Path, tmp_path: Path) -> None:
    given = options(answers, tmp_path / "student", teachers=(str(tmp_path / "nobody"),))
    with pytest.raises((ValueError, OSError), match="nobody"):
        train_tagger(given, [], Console(quiet=True))


def test_what_teachers_say_has_its_share_of_the_loss() -> None:
    logits = torch.zeros(2, BINS)
    bins, censored = torch.tensor([3, 9]), torch.tensor([False, True])
    alone = OrdinalLoss(0.8)(logits, bins, censored)
    taught = torch.full((2, BINS), 1.0 / BINS)
    with_teachers = OrdinalLoss(0.8, taught=0.25)(logits, bins, censored, taught)
    assert float(with_teachers) == pytest.approx(0.75 * float(alone) + 0.25 * np.log(BINS))


class _Stopped(Exception):
    pass


def run(answers: Path, out: Path, stop_after: int = 0) -> np.ndarray:
    """The held-out logits that a run ends with."""
    given = options(answers, out)
    examples = read_examples(given.train)
    kept, held = hold_out(examples, given.held_out)
    reader, description = make_reader(answers, [e.conversation for e in kept])
    learned, judged = prepare(kept, reader), prepare(held, reader)
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    model = LengthModel(make_encoder(SCRATCH, 1, 12), 1)

    def report(progress: TrainingProgress, step: int, total: int) -> None:
        if step == stop_after:
            raise _Stopped

    _train(model, learned, judged, description, given, report)
    return logits_of(model, judged, description.marks.pad)


def make_reader(answers: Path, conversations: list) -> tuple[PromptReader, Description]:
    tokenizer = Tokenizer.from_file(str(answers / "tokenizer.json"))
    mean, scale = scales_of(feature_rows(conversations))
    window = TrainOptions(Path(), Path(), "").window
    description = Description(window, marks_of(tokenizer), ("m",), mean, scale)
    return PromptReader(description, tokenizer), description


def _train(
    model: LengthModel,
    learned: Examples,
    judged: Examples,
    description: Description,
    given: TrainOptions,
    report: object,
) -> None:
    train(model, learned, judged, description.marks.pad, given, report)  # type: ignore[arg-type]


def test_a_stopped_run_goes_on_as_if_it_had_not_been(answers: Path, tmp_path: Path) -> None:
    through = run(answers, tmp_path / "through")
    with pytest.raises(_Stopped):
        run(answers, tmp_path / "stopped", stop_after=53)  # saved after 50
    assert np.array_equal(run(answers, tmp_path / "stopped"), through)


def test_a_model_of_another_version_is_refused(answers: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no length model"):
        load_tagger(str(tmp_path))
    (tmp_path / DESCRIPTION).write_text('{"format": 0}')
    with pytest.raises(ValueError, match="not of format 1"):
        load_tagger(str(tmp_path))
