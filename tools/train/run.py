"""`foretell train-tagger`: from a file of answered prompts to a folder that the tagger serves."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from rich.console import Console
from tokenizers import Tokenizer

from foretell.services.tagger.encoder import OnnxEncoder
from foretell.services.tagger.reading import (
    Description,
    PromptReader,
    feature_rows,
    marks_of,
    scales_of,
)
from foretell.tools.length.dataset import Example, read_examples
from foretell.tools.length.scores import Scores, fitting_temperature, score_of
from foretell.tools.progress import showing
from foretell.tools.train.card import write_card
from foretell.tools.train.export import export
from foretell.tools.train.inputs import Examples, hold_out, prepare
from foretell.tools.train.loop import logits_of, train
from foretell.tools.train.network import LengthModel, make_encoder
from foretell.tools.train.options import SCRATCH, TrainOptions
from foretell.tools.train.state import TrainingProgress
from foretell.tools.train.teachers import taught_by

_LEAST_HELD = 20
Taught = NDArray[np.float32]


def train_tagger(options: TrainOptions, tests: list[Path], console: Console) -> dict[str, Scores]:
    """Train, export, and score the exported model on held-out examples and each file of `tests`.

    Raises ValueError if the files or the encoder are wrong.
    """
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with console.status(f"reading {options.train}"):
        examples = read_examples(options.train, limit=options.limit)
        kept, held = hold_out(examples, options.held_out)
    if len(held) < _LEAST_HELD:
        raise ValueError(f"{options.train}: too few conversations to hold any out")
    tokenizer_file = _tokenizer_file(options)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    description = _describe(options, kept, tokenizer)
    reader = PromptReader(description, tokenizer)
    with console.status(f"tokenizing {len(examples):,} prompts"):
        learned, judged = prepare(kept, reader), prepare(held, reader)
    if options.teachers:
        learned = replace(learned, taught=_taught(options, kept))
    vocabulary = tokenizer.get_vocab_size()
    encoder = make_encoder(options.encoder, options.layers, vocabulary)
    model = LengthModel(encoder, len(description.models))
    trained = _train(model, learned, judged, description.marks.pad, options)
    logits = logits_of(model, judged, description.marks.pad)
    description = replace(description, temperature=_temperature(logits, judged))
    with console.status("exporting"):
        export(model, description, tokenizer_file, options.out)
    with console.status("evaluating"):
        served = OnnxEncoder(options.out, threads=torch.get_num_threads())
        scores = {"held out": score_of(served, held)}
        for path in tests:
            scores[path.name] = score_of(served, read_examples(path))
    facts = {"examples": len(kept), "steps": trained.steps, "epochs": trained.epoch}
    write_card(options, description, facts, scores)
    return scores


def _tokenizer_file(options: TrainOptions) -> Path:
    if options.tokenizer:
        return Path(options.tokenizer)
    if options.encoder == SCRATCH:
        raise ValueError("an encoder from scratch needs --tokenizer, a tokenizer.json")
    found = Path(options.encoder) / "tokenizer.json"
    if found.exists():
        return found
    fast = transformers.AutoTokenizer.from_pretrained(options.encoder, use_fast=True)
    target = options.out / "training" / "tokenizer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    fast.backend_tokenizer.save(str(target))
    return target


def _describe(options: TrainOptions, examples: list[Example], tokenizer: Tokenizer) -> Description:
    mean, scale = scales_of(feature_rows([example.conversation for example in examples]))
    models = tuple(sorted({example.model_name for example in examples}))
    return Description(options.window, marks_of(tokenizer), models, mean, scale)


def _taught(options: TrainOptions, examples: list[Example]) -> Taught:
    with showing("asking the teachers") as show:
        return taught_by(options.teachers, examples, options.out / "training", show)


def _train(
    model: LengthModel,
    learned: Examples,
    judged: Examples,
    pad: int,
    options: TrainOptions,
) -> TrainingProgress:
    with showing("training") as show:

        def report(progress: TrainingProgress, step: int, total: int) -> None:
            best = "" if progress.best_loss == float("inf") else f", best {progress.best_loss:.4f}"
            show(f"epoch {progress.epoch + 1}: loss {progress.loss:.4f}{best}", step, total)

        return train(model, learned, judged, pad, options, report)


def _temperature(logits: NDArray[np.float32], examples: Examples) -> float:
    def probabilities(value: float) -> NDArray[np.float64]:
        weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / value)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), float)

    return fitting_temperature(probabilities, examples.tokens)
