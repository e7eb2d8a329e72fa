"""Find by simulation in which order a file of offline requests is done soonest, and how soon.

Lengths that are not known are drawn: from the small length model or, once enough answers have come,
from the answers to requests that begin alike.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.latency.tables import profile_step_time
from foretell.length.bins import EDGES, LONGEST_TOKENS
from foretell.length.small import SmallModel, Weights, shipped
from foretell.model import EngineConfig, GpuProfile
from foretell.offline.feed import Feed, Sequential
from foretell.offline.feedback import Feedback
from foretell.offline.lengths import LengthMoments, sources
from foretell.offline.ordering import demand
from foretell.offline.requests import Line
from foretell.offline.tree import PrefixTree, Prompt, prefix_tree
from foretell.offline.waiting import OfflineJob
from foretell.offline.work import Ints, measured_work
from foretell.sim.offline import plain, run

BLOCK_TOKENS = 16
"""Tokens of a KV block, if no profile says."""
_AT_ONCE = 512  # prompts that the length model reads together
_HEARD = 8  # answers of a group from which on its lengths are drawn from them, not from the model

Read = Callable[[], Iterable[tuple[Line, Prompt]]]
"""Reads the requests of a file, from its beginning."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A file of requests, served by a simulated engine in several orders."""

    lines: list[Line]
    order: list[int]
    """Their indices in the order that is done soonest."""
    found: dict[str, Any]
    """The report about the order, as JSON."""

    @property
    def soonest(self) -> list[Line]:
        """The requests in the order that is done soonest."""
        return [self.lines[request] for request in self.order]


def first_seen(read: Read) -> tuple[list[int], float]:
    """The numbers of the lines in the order of the file, but with prompts that begin alike next to
    each other, and the share of prompt tokens that are shared. ValueError if there are no lines."""
    lines, tree = _read(read, BLOCK_TOKENS)
    return [lines[request].number for request in tree.first_seen().tolist()], tree.sharing_ratio


def judged(
    read: Read,
    profile: GpuProfile,
    left: Container[int] | None = None,
    answers: Mapping[int, int] | None = None,
) -> Judged:
    """Serve requests by a simulated engine of this profile in several orders.

    `left`: numbers of the lines that are still to be answered; None: all. `answers`: tokens of
    answers that have come, by line number. ValueError for requests that cannot be served, or a
    profile without the necessary figures.
    """
    step_time, config = profile_step_time(profile), profile.engine()
    work = measured_work(step_time)
    lines, tree = _read(read, config.block_size_tokens)
    outputs = _drawn(lines, tree, config, answers or {})
    if left is not None:
        stay = np.array([line.number in left for line in lines])
        lines, tree = _read(read, config.block_size_tokens, left)
        outputs = outputs[stay]
    known = np.array([line.known_tokens for line in lines], np.int64)
    lengths = LengthMoments.known(outputs)
    wanted = demand(tree, work, lengths.mean, lengths.square)
    prior = float(outputs.mean())
    job = OfflineJob(tree, tree.first_seen(), sources(tree), known, prior, config.max_model_len)
    kv_tokens = config.total_blocks * config.block_size_tokens
    feeds: dict[str, Feed] = {
        "fcfs": Sequential(range(tree.requests)),
        "dfs": Sequential(tree.first_seen().tolist()),
        "blend": Feedback(job, work, kv_tokens, overlaps=False, seats=config.max_num_seqs),
    }
    runs = {
        name: run(tree, outputs, feed, config, plain(step_time)) for name, feed in feeds.items()
    }
    seconds = {name: round(each.seconds, 1) for name, each in runs.items()}
    best = min(seconds, key=seconds.__getitem__)
    return Judged(
        lines,
        runs[best].order,
        {
            "expected_output_tokens": int(outputs.sum()),
            "sharing_ratio": round(tree.sharing_ratio, 4),
            "density": round(float(wanted.density(tree)[tree.root]), 3),
            "soonest": best,
            "speed_up_over_fcfs": round(seconds["fcfs"] / max(seconds[best], 1e-9), 3),
        },
    )


def _read(
    read: Read, block_tokens: int, wanted: Container[int] | None = None
) -> tuple[list[Line], PrefixTree]:
    """The lines, all or those whose numbers are wanted, and the tree of their prompts."""
    lines: list[Line] = []

    def prompts() -> Iterator[Prompt]:
        for line, prompt in read():
            if wanted is None or line.number in wanted:
                lines.append(line)
                yield prompt

    tree = prefix_tree(prompts(), block_tokens)
    if not lines:
        raise ValueError("there are no requests")
    return lines, tree


def _drawn(
    lines: Sequence[Line], tree: PrefixTree, config: EngineConfig, answers: Mapping[int, int]
) -> Ints:
    """(n,): output tokens, one draw for each request: from the answers to requests that begin
    alike, or from the small length model."""
    draws = np.random.default_rng(1)
    outputs = _believed(lines, draws)
    heard = np.array([answers.get(line.number, 0) for line in lines], np.int64)
    group = sources(tree)
    for number in np.unique(group[heard > 0]).tolist():
        members = np.flatnonzero(group == number)
        known = heard[members][heard[members] > 0]
        if len(known) >= _HEARD:
            outputs[members] = draws.choice(known, len(members))
    fixed = np.array([line.known_tokens for line in lines], np.int64)
    outputs = np.where(fixed > 0, fixed, outputs)
    most = np.array([line.conversation.max_tokens for line in lines], np.int64)
    outputs = np.where(most > 0, np.minimum(outputs, most), outputs)
    blocks = (config.total_blocks - 2) * config.block_size_tokens
    room = min(config.max_model_len, blocks) - tree.prompt_tokens
    if room.min() < 1:
        place = int(room.argmin())
        tokens = int(tree.prompt_tokens[place])
        raise ValueError(f"line {lines[place].number} has {tokens:,} prompt tokens")
    return np.minimum(outputs, room)


def _believed(lines: Sequence[Line], draws: np.random.Generator) -> Ints:
    """(n,): output tokens, drawn from the small length model."""
    model = SmallModel(Weights.read(shipped()))
    found: list[NDArray[np.float64]] = []
    for begin in range(0, len(lines), _AT_ONCE):
        some = lines[begin : begin + _AT_ONCE]
        shares, _ = model.read([line.conversation for line in some], [""] * len(some))
        upto = shares.cumsum(axis=1)
        bins = (upto < draws.random((len(some), 1)) * upto[:, -1:]).sum(axis=1)
        low = EDGES[bins]
        high = np.append(EDGES[1:], 2.0 * LONGEST_TOKENS)[bins]
        found.append(np.ceil(low + draws.random(len(some)) * (high - low)))
    return np.concatenate(found).astype(np.int64)
