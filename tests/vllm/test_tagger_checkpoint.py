"""A real Hugging Face checkpoint behind the real service. Weights are random: only the path from
the prompt to the number is checked, against the model called by hand."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from foretell.services.tagger import checkpoint
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = pytest.mark.torch

READY_S = 90.0
POSITIONS = 66  # less 2 for RoBERTa's offset: 64 tokens
PROMPTS = [
    "Say hi.",
    "Write a story of a thousand words about a lighthouse.",
    "List the primes below one hundred, one a line.",
    "Translate to French: " + "the cat sat on the mat, and " * 40,
]
BOS, PAD, EOS = 0, 1, 2
SPECIAL_TOKENS = {
    "bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>",
    "eos_token": "</s>", "sep_token": "</s>",
}  # fmt: skip


def save_tokenizer(folder: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(PROMPTS, trainer)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **SPECIAL_TOKENS).save_pretrained(
        folder
    )


def save_model(folder: Path, num_labels: int = 1) -> None:
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=POSITIONS, type_vocab_size=1,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, num_labels=num_labels,
        initializer_range=0.5,  # with the usual 0.02 a random model answers all alike
    )  # fmt: skip
    model = transformers.RobertaForSequenceClassification(config)
    with torch.no_grad():  # so that answers differ by whole tokens and none is clipped to 1
        model.classifier.out_proj.weight.mul_(30.0)
        model.classifier.out_proj.bias.fill_(500.0)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    save_tokenizer(path)
    save_model(path)
    return path


@pytest.fixture(scope="module")
def by_hand(folder: Path) -> list[float]:
    """The model's answer to each prompt: one at a time, no padding, the middle cut by hand."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        if len(ids) > POSITIONS - 2:
            ids = ids[:32] + ids[-32:]
        with torch.no_grad():
            answers.append(model(torch.tensor([ids])).logits.item())
    assert min(answers) > 1.0
    assert len({round(answer) for answer in answers}) == len(PROMPTS), "indistinguishable"
    return answers


@pytest.fixture
def stub(folder: Path, tmp_path: Path) -> Iterator[Any]:
    """A client of `python -m foretell.services.tagger` with the checkpoint."""
    ready_file = tmp_path / "ready"
    flags = ["--checkpoint", str(folder), "--ready-file", str(ready_file)]
    child = subprocess.Popen([sys.executable, "-m", "foretell.services.tagger", *flags])
    try:
        deadline_s = time.monotonic() + READY_S
        while not ready_file.exists():
            assert child.poll() is None, f"the tagger ended with {child.returncode}"
            assert time.monotonic() < deadline_s, "the tagger did not become ready"
            time.sleep(0.05)
        with grpc.insecure_channel(json.loads(ready_file.read_text())["address"]) as channel:
            yield tagger_pb2_grpc.TaggerStub(channel)
        child.terminate()
        assert child.wait(READY_S) == 0
    finally:
        child.kill()
        child.wait()


def test_the_service_answers_what_the_model_says(stub: Any, by_hand: list[float]) -> None:
    requests = [tagger_pb2.TagRequest(model_name="m", prompt=prompt) for prompt in PROMPTS]
    singly = [stub.Tag(request, timeout=READY_S) for request in requests]
    assert [answer.source for answer in singly] == ["model"] * len(PROMPTS)
    assert [answer.expected_tokens for answer in singly] == pytest.approx(by_hand, rel=1e-4)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(lambda r: stub.Tag(r, timeout=READY_S), requests))
    assert [answer.expected_tokens for answer in together] == pytest.approx(by_hand, rel=1e-4)


def test_a_batch_agrees_with_its_members(folder: Path, by_hand: list[float]) -> None:
    regressor = checkpoint.load(str(folder), "tokens")
    assert regressor.max_tokens == POSITIONS - 2
    assert regressor.predict(PROMPTS) == pytest.approx(by_hand, rel=1e-4)
    assert [regressor.predict([p])[0] for p in PROMPTS] == pytest.approx(by_hand, rel=1e-4)


def test_a_logarithmic_target_is_undone(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.out_proj.weight.zero_()
        model.classifier.out_proj.bias.fill_(5.0)
    model.save_pretrained(tmp_path)
    assert checkpoint.load(str(tmp_path), "log_tokens").predict(["hi"]) == pytest.approx(
        [math.exp(5.0)]
    )


def test_a_classifier_is_refused(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    save_model(tmp_path, num_labels=3)
    with pytest.raises(SystemExit, match="3 labels; a regression has 1"):
        checkpoint.load(str(tmp_path), "tokens")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot load tagger checkpoint"):
        checkpoint.load(str(tmp_path), "tokens")


def test_a_model_that_predicts_nothing_finite_is_refused(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.out_proj.bias.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match="predicted nan"):
        checkpoint.load(str(tmp_path), "tokens")
