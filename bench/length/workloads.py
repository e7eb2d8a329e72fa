"""Real prompt and output lengths, and a simple model that guesses the latter from the prompt."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.length import LengthHistory
from foretell.model import LengthEstimate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BUCKETS = 1024  # of hashed words
_CHARACTERS = 2000  # of a prompt that are read
_RIDGE = 10.0  # penalty of the regression
_LONGEST = 4096  # output tokens; a live engine would have stopped the few beyond
_LEARNT, _DEVELOPED = 0.4, 0.6  # where the split of a workload ends


@dataclass(frozen=True, slots=True)
class Requests:
    """Tokens of each request; `guessed` is a model's estimate of `output`, where there is one."""

    prompt: Ints
    output: Ints
    guessed: Floats | None = None

    def __len__(self) -> int:
        return len(self.output)

    def take(self, index: Ints) -> "Requests":
        guessed = None if self.guessed is None else self.guessed[index]
        return Requests(self.prompt[index], self.output[index], guessed)


class Workload(NamedTuple):
    """Three parts without a request in common: to learn from, to choose by, to evaluate on."""

    name: str
    learnt: Requests
    chosen_by: Requests
    evaluated: Requests


class Live(NamedTuple):
    """Requests as an engine holds them at a random moment, and the tokens each has generated."""

    requests: Requests
    generated: Ints


def observe_live(requests: Requests, count: int, rng: np.random.Generator) -> Live:
    """`count` running requests, seen at a random time of a random engine step.

    At equal time per token a request is met in proportion to its length, and any number of its
    tokens short of all is as likely as any other to have been generated.
    """
    weight = requests.output / requests.output.sum()
    met = requests.take(rng.choice(len(requests), count, p=weight))
    return Live(met, np.floor(rng.random(count) * met.output).astype(np.int64))


def history_estimates(workload: Workload, prompts: Ints) -> list[LengthEstimate]:
    """What a history that has observed the learnt part says of requests with these prompts."""
    history = LengthHistory()
    for prompt, output in zip(workload.learnt.prompt, workload.learnt.output, strict=True):
        history.observe(workload.name, int(prompt), int(output))
    return [history.estimate(workload.name, int(prompt)) for prompt in prompts]


def load(data: Path, rng: np.random.Generator) -> list[Workload]:
    """The workloads below `data`."""
    with (data / "traces/sharegpt_10k_llama2_lengths.csv").open() as lines:
        sharegpt = [
            (int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]))
            for row in csv.DictReader(lines)
        ]
    with gzip.open(data / "traces/lengths_lmsys_nanoflow.csv.gz", "rt") as lines:
        lmsys = [
            (int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row in csv.DictReader(lines)
        ]
    return [
        _split("ShareGPT 10k", sharegpt, rng),
        _split("LMSYS", lmsys, rng),
        _with_model(data / "text", rng),
    ]


def _split(name: str, pairs: Sequence[tuple[int, int]], rng: np.random.Generator) -> Workload:
    kept = rng.permutation(np.array([pair for pair in pairs if 0 < pair[1] <= _LONGEST], np.int64))
    ends = [int(share * len(kept)) for share in (_LEARNT, _DEVELOPED)]
    parts = (Requests(part[:, 0], part[:, 1]) for part in np.split(kept, ends))
    return Workload(name, *parts)


def _with_model(folder: Path, rng: np.random.Generator) -> Workload:
    """ShareGPT with text, split by conversation, with the estimates of a model of the prompts."""
    rows = _read(folder / "sharegpt_train.jsonl.gz")
    conversations = sorted({row["conv"] for row in rows})
    rng.shuffle(conversations)
    held_out = set(conversations[: len(conversations) // 5])
    parts = (
        [row for row in rows if row["conv"] not in held_out],
        [row for row in rows if row["conv"] in held_out],
        _read(folder / "sharegpt_val.jsonl.gz"),
    )
    features = [_features(part) for part in parts]
    outputs = [np.array([row["out_tok"] for row in part], np.int64) for part in parts]
    weights = _fit(features[0], outputs[0])
    guessed = [np.exp(x @ weights) for x in features]
    factor = outputs[0].sum() / guessed[0].sum()  # of a median to a mean
    prompts = [
        np.array([row["in_tok"] + row["hist_tok"] for row in part], np.int64) for part in parts
    ]
    requests = [
        Requests(prompt, output, np.maximum(1.0, factor * guess))
        for prompt, output, guess in zip(prompts, outputs, guessed, strict=True)
    ]
    return Workload("ShareGPT text", *requests)


def _read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if 0 < row["out_tok"] <= _LONGEST]


def _features(rows: Sequence[dict[str, Any]]) -> Floats:
    """log(1 + count) of hashed words, a constant, and log lengths of what came before."""
    x = np.zeros((len(rows), _BUCKETS + 4))
    for features, row in zip(x, rows, strict=True):
        words = re.findall(r"\w+", row["prompt"][:_CHARACTERS].lower())
        hashed = np.array([zlib.crc32(word.encode()) % _BUCKETS for word in words], np.int64)
        features[:_BUCKETS] = np.log1p(np.bincount(hashed, minlength=_BUCKETS))
        known = [row["in_tok"], row["hist_tok"], row["turn"]]
        features[_BUCKETS:] = [1.0, *np.log1p(known)]
    return x


def _fit(x: Floats, output: Ints) -> Floats:
    """Ridge regression of log output tokens."""
    gram = x.T @ x + _RIDGE * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(gram, x.T @ np.log(output)))
