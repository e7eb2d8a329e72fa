"""What a file of offline requests asks of a GPU, and how soon it is done in which order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.length.bins import EDGES, LONGEST_TOKENS
from foretell.length.small import SmallModel, Weights, shipped
from foretell.model import BatchShape, EngineConfig, GpuProfile
from foretell.offline.feed import Feed, Sequential
from foretell.offline.feedback import Feedback, Job
from foretell.offline.lengths import Lengths, sources
from foretell.offline.ordering import demand
from foretell.offline.tree import PrefixTree, Prompt, prefix_tree
from foretell.offline.work import Ints, WorkModel, measured_work
from foretell.sim.offline import plain, run
from tools.order.file import Line, read_lines, write_lines
from tools.pictures import figure, save

_AT_ONCE = 512  # prompts that the length model reads together
_BINS = 120  # of the picture


@dataclass(slots=True)
class Watched:
    """A feed that remembers what it sent, and what the engine's steps did meanwhile."""

    feed: Feed
    work: WorkModel
    sent: list[int]
    steps: list[tuple[float, float, float, float]]
    """(begin, duration, computing, reading) of each step, in seconds."""

    def admit(self, waiting: int) -> Sequence[int]:
        chosen = self.feed.admit(waiting)
        self.sent.extend(chosen)
        return chosen

    def step_tokens(self) -> int:
        return 0  # a plain engine's budget is fixed

    def unasked_steps(self) -> int:
        return self.feed.unasked_steps()

    def stepped(self, steps: int) -> None:
        self.feed.stepped(steps)

    def ended(self, request: int, tokens: int) -> None:
        self.feed.ended(request, tokens)

    def watch(self, begin_s: float, duration_s: float, shape: BatchShape) -> None:
        """Note one step."""
        compute_s = self.work.prefill_token_s * shape.prefill_tokens
        compute_s += self.work.decode_token_s * shape.decode_seqs
        memory_s = self.work.decode_pair_s * shape.decode_pairs
        self.steps.append((begin_s, duration_s, compute_s, memory_s))


@dataclass(frozen=True, slots=True)
class Judged:
    """A file of requests, served by a simulated engine in several orders."""

    lines: list[Line]
    watched: dict[str, Watched]
    found: dict[str, Any]
    """What `foretell order` prints."""

    @property
    def soonest(self) -> list[Line]:
        """The requests in the order that is done soonest."""
        return [self.lines[request] for request in self.watched[self.found["soonest"]].sent]


def judge(
    path: Path, profile_name: str, ordered: Path | None, picture: Path | None
) -> dict[str, Any]:
    """What `foretell order` prints; writes the file in the order that is done soonest, and a
    picture, where asked to.

    ValueError for a file or profile that cannot be used.
    """
    judged = judged_file(path, profile_name)
    if ordered is not None:
        write_lines(path, judged.soonest, ordered)
    if picture is not None:
        _draw(judged.watched, picture)
    return judged.found


def judged_file(path: Path, profile_name: str) -> Judged:
    """The file at `path`, simulated; ValueError for a file or profile that cannot be used."""
    profile = load_profile(profile_name)
    step_time = profile_step_time(profile)
    work, config = measured_work(step_time), _config(profile)
    lines: list[Line] = []

    def prompts() -> Iterator[Prompt]:
        for line, prompt in read_lines(path):
            lines.append(line)
            yield prompt

    tree = prefix_tree(prompts(), config.block_size_tokens)
    if not lines:
        raise ValueError(f"{path} has no requests")
    known = np.array([line.known_tokens for line in lines], np.int64)
    outputs = _drawn(lines, tree, known, config)
    lengths = Lengths.known(outputs)
    wanted = demand(tree, work, lengths.mean, lengths.square)
    prior = float(outputs.mean())
    job = Job(tree, tree.first_seen(), sources(tree), known, prior, config.max_model_len)
    kv_tokens = config.total_blocks * config.block_size_tokens
    feeds: dict[str, Feed] = {
        "fcfs": Sequential(range(tree.requests)),
        "dfs": Sequential(tree.first_seen().tolist()),
        "blend": Feedback(job, work, kv_tokens, overlaps=False, seats=config.max_num_seqs),
    }
    watched = {name: Watched(feed, work, [], []) for name, feed in feeds.items()}
    orders = {}
    for name, each in watched.items():
        found = run(tree, outputs, each, config, plain(step_time), each.watch)
        orders[name] = {
            "seconds": round(found.seconds, 1),
            "tokens_per_s": round(found.tokens_per_s, 1),
            "sharing_ratio": round(found.sharing_ratio, 4),
            "preemptions": found.preemptions,
        }
    best = min(orders, key=lambda name: orders[name]["seconds"])
    seconds = {name: float(each["seconds"]) for name, each in orders.items()}
    told = {
        "profile": profile_name,
        "requests": tree.requests,
        "prompt_tokens": int(tree.prompt_tokens.sum()),
        "expected_output_tokens": int(outputs.sum()),
        "known_lengths": int((known > 0).sum()),
        "sharing_ratio": round(tree.sharing_ratio, 4),
        "compute_s": round(float(wanted.compute_s.sum()), 1),
        "memory_s": round(float(wanted.memory_s.sum()), 1),
        "density": round(float(wanted.density(tree)[tree.root]), 3),
        "simulated": orders,
        "soonest": best,
        "speed_up_over_fcfs": round(seconds["fcfs"] / max(seconds[best], 1e-9), 3),
        "speed_up_over_dfs": round(seconds["dfs"] / max(seconds[best], 1e-9), 3),
    }
    return Judged(lines, watched, told)


def _config(profile: GpuProfile) -> EngineConfig:
    if not profile.total_blocks:
        raise ValueError(f"the profile {profile.name} does not say how many KV blocks there are")
    return EngineConfig(
        profile.name,
        profile.block_size_tokens,
        profile.total_blocks,
        profile.max_num_seqs,
        profile.max_num_batched_tokens,
        profile.max_model_len,
    )


def _drawn(lines: Sequence[Line], tree: PrefixTree, known: Ints, config: EngineConfig) -> Ints:
    """(n,): output tokens as the small length model believes, one draw for each request."""
    model, draws = SmallModel(Weights.read(shipped())), np.random.default_rng(1)
    found: list[NDArray[np.float64]] = []
    for begin in range(0, len(lines), _AT_ONCE):
        some = lines[begin : begin + _AT_ONCE]
        shares, _ = model.read([line.conversation for line in some], [""] * len(some))
        upto = shares.cumsum(axis=1)
        bins = (upto < draws.random((len(some), 1)) * upto[:, -1:]).sum(axis=1)
        low = EDGES[bins]
        high = np.append(EDGES[1:], 2.0 * LONGEST_TOKENS)[bins]
        found.append(np.ceil(low + draws.random(len(some)) * (high - low)))
    outputs = np.where(known > 0, known, np.concatenate(found).astype(np.int64))
    most = np.array([line.conversation.max_tokens for line in lines], np.int64)
    outputs = np.where(most > 0, np.minimum(outputs, most), outputs)
    blocks = (config.total_blocks - 2) * config.block_size_tokens
    room = min(config.max_model_len, blocks) - tree.prompt_tokens
    if room.min() < 1:
        place = int(room.argmin())
        raise ValueError(f"request {place + 1} has {tree.prompt_tokens[place]:,} prompt tokens")
    return np.minimum(outputs, room)


def _draw(watched: dict[str, Watched], path: Path) -> None:
    """Shares of the time that computing and reading need, over time, for each order."""
    picture = figure(9.0, 4.5)
    axes = picture.subplots(len(watched), 1, sharex=True, sharey=True)
    for axis, (name, each) in zip(axes, watched.items(), strict=True):
        rows = np.array(each.steps)
        end_s = float(rows[-1, 0] + rows[-1, 1])
        places = np.minimum((_BINS * rows[:, 0] / end_s).astype(np.int64), _BINS - 1)
        total, compute, memory = (np.bincount(places, rows[:, i], _BINS) for i in (1, 2, 3))
        times = np.linspace(0.0, end_s, _BINS)
        axis.plot(times, compute / np.maximum(total, 1e-9), label="computing")
        axis.plot(times, memory / np.maximum(total, 1e-9), label="reading the KV cache")
        axis.set_ylabel(name)
    axes[0].legend(loc="upper right", fontsize=8)
    axes[0].set_title("Share of the time, simulated", fontsize=9)
    axes[-1].set_xlabel("seconds")
    save(picture, path)
