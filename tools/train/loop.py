"""Epochs, evaluations, early stopping."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from foretell.services.tagger.reading import EncoderInputs
from foretell.tools.train.inputs import Examples, batches, hide_models, in_order
from foretell.tools.train.network import LengthModel, OrdinalLoss
from foretell.tools.train.options import SCRATCH, TrainOptions
from foretell.tools.train.state import Store, TrainingProgress

_WARM_UP = 0.05  # share of all steps in which the learning rate rises
_CLIP = 1.0
_EVALUATIONS_PER_EPOCH = 4
_SAVE_EVERY = 50  # steps
_EVALUATED_TOGETHER = 128
_LOSS_RATE = 0.02
_HEAD_LEARNING_RATE = 1e-3
_NEIGHBOURS = 0.8  # bins: deviation of the target around the true one
_DROPPED_TOKENS = 0.1
"""Share of a text's tokens hidden from each step: conversations repeat their own words, and a model
that memorises them fails on other conversations."""
_AVERAGED_STEPS = 200.0

Report = Callable[[TrainingProgress, int, int], None]
"""Called after every step with progress, the step's number and the number of all steps."""


def train(
    model: LengthModel,
    learned: Examples,
    held: Examples,
    pad: int,
    options: TrainOptions,
    report: Report,
) -> TrainingProgress:
    """Train `model` and leave it with its best weights; continue a stopped run.

    Weights averaged over the latest steps are evaluated and kept, since they generalise better.
    The order of batches and the hidden models depend only on seed and epoch, dropout on seed and
    step: a resumed run gives the same result as one that was not stopped.
    """
    optimizer = _optimizer(model, options)
    store, loss_of = Store(options), OrdinalLoss(_NEIGHBOURS, options.taught)
    averaged = AveragedModel(model, avg_fn=_average)
    parts = {"model": model, "averaged": averaged, "optimizer": optimizer}
    progress = store.load(**parts)
    per_epoch = -(-len(learned) // options.batch)
    total = per_epoch * options.epochs
    every = max(1, per_epoch // _EVALUATIONS_PER_EPOCH)
    while progress.epoch < options.epochs and progress.evaluations_since_best < options.patience:
        rng = np.random.default_rng((options.seed, progress.epoch))
        models = hide_models(learned.models, rng)
        order = batches(learned, options.batch, rng)
        for chosen in order[progress.batch :]:
            torch.manual_seed(options.seed * 1_000_003 + progress.steps)
            _set_rates(optimizer, options, progress.steps / total)
            loss = _step(model, optimizer, loss_of, learned, models, chosen, pad)
            averaged.update_parameters(model)
            progress.batch += 1
            progress.steps += 1
            progress.loss += max(_LOSS_RATE, 1 / progress.steps) * (loss - progress.loss)
            report(progress, progress.steps, total)
            ended = progress.batch == len(order)
            if ended or progress.batch % every == 0:
                judged = averaged.module
                _judge(progress, evaluate(judged, held, pad, loss_of), judged, store)
            if ended or progress.steps % _SAVE_EVERY == 0:
                store.save(progress, **parts)
            if progress.evaluations_since_best >= options.patience:
                break
        else:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            store.save(progress, **parts)
    store.load_best(model)
    return progress


def evaluate(model: LengthModel, examples: Examples, pad: int, loss_of: nn.Module) -> float:
    """Mean loss, nats."""
    logits = torch.from_numpy(logits_of(model, examples, pad))
    bins, censored = torch.from_numpy(examples.bins), torch.from_numpy(examples.censored)
    return float(loss_of(logits, bins, censored))


def logits_of(model: LengthModel, examples: Examples, pad: int) -> NDArray[np.float32]:
    """Logits (n, bins), in the examples' order."""
    model.eval()
    parts: list[NDArray[np.float32]] = []
    order = list(in_order(examples, _EVALUATED_TOGETHER))
    with torch.inference_mode():
        for chosen in order:
            parts.append(model(*_tensors(examples.inputs(chosen, pad))).numpy())
    model.train()
    found = np.concatenate(parts)
    found[np.concatenate(order)] = found.copy()
    return found


def _judge(progress: TrainingProgress, loss: float, model: nn.Module, store: Store) -> None:
    if loss < progress.best_loss:
        progress.best_loss, progress.evaluations_since_best = loss, 0
        store.save_best(model)
    else:
        progress.evaluations_since_best += 1


def _step(
    model: LengthModel,
    optimizer: torch.optim.Optimizer,
    loss_of: nn.Module,
    examples: Examples,
    models: NDArray[np.int64],
    chosen: NDArray[np.int64],
    pad: int,
) -> float:
    inputs = examples.inputs(chosen, pad)
    ids, segments, mask, features, _ = _tensors(inputs)
    seen = torch.rand(mask.shape) >= _DROPPED_TOKENS
    seen[:, 0] = True
    mask = mask * seen
    logits = model(ids, segments, mask, features, torch.from_numpy(models[chosen]))
    loss: Tensor = loss_of(
        logits,
        torch.from_numpy(examples.bins[chosen]),
        torch.from_numpy(examples.censored[chosen]),
        None if examples.taught is None else torch.from_numpy(examples.taught[chosen]),
    )
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    optimizer.step()
    return float(loss.detach())


def _tensors(inputs: EncoderInputs) -> tuple[Tensor, ...]:
    arrays = (inputs.ids, inputs.segments, inputs.mask, inputs.features, inputs.models)
    return tuple(map(torch.from_numpy, arrays))


def _average(averaged: Tensor, latest: Tensor, updates: Tensor) -> Tensor:
    """An exponential average, over fewer steps at the beginning."""
    return averaged + (latest - averaged) / (1.0 + updates / 9.0).clamp(max=_AVERAGED_STEPS)


def _optimizer(model: LengthModel, options: TrainOptions) -> torch.optim.Optimizer:
    encoder = list(model.encoder.parameters())
    if options.encoder != SCRATCH:  # they are half of a small encoder's weights, and hardly change
        embeddings = getattr(model.encoder, "embeddings", None)
        for parameter in embeddings.parameters() if embeddings is not None else ():
            parameter.requires_grad_(False)
    inside = set(map(id, encoder))
    head = [p for p in model.parameters() if id(p) not in inside]
    groups = [[p for p in encoder if p.requires_grad], head]
    return torch.optim.AdamW([{"params": group} for group in groups], weight_decay=0.01)


def _set_rates(optimizer: torch.optim.Optimizer, options: TrainOptions, done: float) -> None:
    """Set learning rates that rise and then fall linearly."""
    share = min(1.0, done / _WARM_UP) * (1.0 - done)
    rates = (options.learning_rate, _HEAD_LEARNING_RATE)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * share
