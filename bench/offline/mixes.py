"""Files of offline requests with a given density and sharing, as in BlendServe's appendix A.3.

Three sources: Azure's conversations (lengths of a trace, random tokens), MMLU (its questions after
five solved ones of their subject; two tokens of answer) and videos (`VIDEO_TOKENS` of answer on
average, a log-normal distribution in steps of a frame's 256 tokens, since OpenVid's lengths are not
available). In a small file the last of such long answers would take most of the run, so small files
have shorter ones. Each source has its own system prompt.
"""

import csv
import gzip
import json
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.offline.tree import Prompt
from foretell.offline.work import WorkModel

SYSTEM_TOKENS = 32
VIDEO_TOKENS = 16_384
"""Mean tokens of answers in the paper's videos."""
_PIECE = re.compile(r" ?\w{1,6}|[^\w\s]|\s+")  # tokens of English are about this long
_FRAME, _VIDEO_SIGMA, _FEWEST_FRAMES = 256, 0.4, 4
_VIDEO_MOST = 4  # times the mean
_OPTIONS = "ABCD"
Ints = NDArray[np.int64]
Tokens = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class File:
    """Requests in the order of submission, one source after the other."""

    prompts: list[Prompt]
    outputs: Ints


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over a source's requests: seconds of computing and of reading, and tokens."""

    compute_s: float
    memory_s: float
    prompt: float
    shared: float
    """Prompt tokens that nearly every request of the source finds cached."""


def tokens_of(text: str) -> Tokens:
    """A text as tokens: a number for every piece of it."""
    return np.array([zlib.crc32(piece.encode()) for piece in _PIECE.findall(text)], np.uint32)


@lru_cache(maxsize=1)
def azure(data: Path) -> Ints:
    """(n, 2): prompt and output tokens."""
    with gzip.open(data / "traces" / "azure2023_conv.t0-2100.csv.gz", "rt") as file:
        rows = [(int(row["in_tok"]), int(row["out_tok"])) for row in csv.DictReader(file)]
    lengths = np.array(rows, np.int64)
    return lengths[(lengths > 0).all(axis=1)]


@lru_cache(maxsize=1)
def mmlu(data: Path) -> tuple[dict[str, Tokens], list[dict[str, str]]]:
    """The solved questions of each subject as tokens, and the questions to be answered."""
    found: dict[str, str] = {}
    for row in rows_of(data / "offline" / "mmlu_dev_40subj.jsonl.gz"):
        found[row["subject"]] = (
            found.get(row["subject"], "") + _asked(row, _OPTIONS) + row["answer"]
        )
    questions = rows_of(data / "offline" / "mmlu_test_40subj.jsonl.gz")
    return {subject: tokens_of(text) for subject, text in found.items()}, questions


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _asked(row: dict[str, str], order: str) -> str:
    options = "".join(f"\n{name}. {row[key]}" for name, key in zip(_OPTIONS, order, strict=True))
    return f"\n\n{row['question']}{options}\nAnswer: "


def _mmlu_prompts(data: Path, count: int, draws: np.random.Generator) -> list[Tokens]:
    """Random pairs of a question and an order of its options, each at most once."""
    solved, questions = mmlu(data)
    orders = ["".join(order) for order in permutations(_OPTIONS)]
    places = draws.permutation(len(questions) * len(orders))[:count]
    prompts: list[Tokens] = []
    for place in places.tolist():
        row, order = questions[place % len(questions)], orders[place // len(questions)]
        prompts.append(np.concatenate((solved[row["subject"]], tokens_of(_asked(row, order)))))
    return prompts


def _source(
    data: Path, name: str, count: int, draws: np.random.Generator, video_tokens: int
) -> tuple[list[Tokens], Ints]:
    """Prompts without the system prompt, and output tokens."""
    if name == "mmlu":
        return _mmlu_prompts(data, count, draws), np.full(count, 2, np.int64)
    if name == "azure":
        rows = azure(data)[draws.integers(0, len(azure(data)), count)]
        return [_random(n, draws) for n in rows[:, 0].tolist()], rows[:, 1]
    prompts = [_random(n, draws) for n in draws.integers(20, 120, count).tolist()]
    return prompts, _video_lengths(count, draws, video_tokens)


def _video_lengths(count: int, draws: np.random.Generator, video_tokens: int) -> Ints:
    mean = video_tokens / _FRAME
    middle = np.log(mean) - _VIDEO_SIGMA**2 / 2
    logarithms = draws.normal(middle, _VIDEO_SIGMA, count)
    frames = np.exp(logarithms).astype(np.int64)
    lengths: Ints = _FRAME * np.clip(frames, _FEWEST_FRAMES, int(_VIDEO_MOST * mean))
    return lengths


def _random(tokens: int, draws: np.random.Generator) -> Tokens:
    return draws.integers(0, 1 << 17, tokens, np.uint32)


@lru_cache(maxsize=32)
def _cost(data: Path, name: str, work: WorkModel, video_tokens: int) -> Cost:
    prompts, outputs = _source(data, name, 4000, np.random.default_rng(0), video_tokens)
    prompt = np.array([len(each) for each in prompts], np.int64) + SYSTEM_TOKENS
    solved, questions = mmlu(data)
    behind = float(np.mean([len(solved[row["subject"]]) for row in questions]))
    answer = outputs.astype(np.float64)
    compute = work.prefill_s(np.zeros_like(prompt), prompt)
    compute += work.decode_token_s * answer
    memory = work.memory_s(prompt, answer, answer**2)
    shared = SYSTEM_TOKENS + (behind if name == "mmlu" else 0.0)
    return Cost(float(compute.mean()), float(memory.mean()), float(prompt.mean()), shared)


def shares(costs: dict[str, Cost], work: WorkModel, density: float, sharing: float) -> list[float]:
    """The parts of azure, mmlu and videos that together have this density and this sharing ratio.

    Both are linear in the parts: sum(part * (compute - density * memory)) = 0 and
    sum(part * (shared - sharing * prompt)) = 0. ValueError if a part would be negative.
    """
    names = ("azure", "mmlu", "video")
    rows = np.array(
        [
            [
                costs[name].compute_s
                - work.prefill_token_s * costs[name].shared
                - density * costs[name].memory_s
                for name in names
            ],
            [costs[name].shared - sharing * costs[name].prompt for name in names],
            [1.0] * 3,
        ]
    )
    found: list[float] = np.linalg.solve(rows, [0.0, 0.0, 1.0]).tolist()
    if min(found) < 0:
        raise ValueError("no mix of the sources has this density and sharing")
    return found


def parts_of(
    data: Path, work: WorkModel, density: float, sharing: float, video_tokens: int
) -> dict[str, float]:
    """The part of each source in a file; ValueError if no mix has these figures."""
    names = ("azure", "mmlu", "video")
    costs = {name: _cost(data, name, work, video_tokens) for name in names}
    return dict(zip(names, shares(costs, work, density, sharing), strict=True))


def mixed(
    data: Path,
    work: WorkModel,
    requests: int,
    density: float,
    sharing: float,
    seed: int,
    video_tokens: int = VIDEO_TOKENS,
) -> File:
    """A file of that many requests; `seed` draws prompts, lengths and questions."""
    draws = np.random.default_rng(seed)
    prompts: list[Prompt] = []
    outputs = []
    for name, part in parts_of(data, work, density, sharing, video_tokens).items():
        system = _random(SYSTEM_TOKENS, draws)
        made, lengths = _source(data, name, round(part * requests), draws, video_tokens)
        prompts += [np.concatenate((system, each)) for each in made]
        outputs.append(lengths)
    return File(prompts, np.concatenate(outputs))
