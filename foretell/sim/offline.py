"""An engine in virtual time that a feed of offline requests drives.

Its scheduling, KV blocks, prefix cache and preemptions are those of the twin of vLLM's scheduler.
Step time is that of a plain engine, or of one that overlaps operators as NanoFlow does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from foretell.engine import Content, Sequence, Twin
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape, EngineConfig
from foretell.offline.feed import Feed
from foretell.offline.tree import PrefixTree
from foretell.offline.work import Ints, WorkModel

StepTime = Callable[[BatchShape], float]
"""Seconds of a step."""


@dataclass(frozen=True, slots=True)
class OverlappedStepTime:
    """A model of a step whose computing and reading of memory overlap, as in NanoFlow.

    max((Tc^q + Tm^q)^(1/q), W + Tm) + t0; Tc: computing, Tm: reading the KV cache, W: reading the
    weights. q = 1 is no overlap, infinity is perfect overlap; 1.8 is an assumption.
    """

    work: WorkModel
    host_s: float = 3e-3
    """t0: host time of a step."""
    overlap: float = 1.8
    """q."""

    def __call__(self, shape: BatchShape) -> float:
        work = self.work
        compute_s = (
            work.prefill_token_s * shape.prefill_tokens
            + work.prefill_pair_s * shape.prefill_pairs
            + work.decode_token_s * shape.decode_seqs
        )
        memory_s = work.decode_pair_s * shape.decode_pairs
        both_s = self.together_s(compute_s, memory_s)
        return max(both_s, work.weights_s + memory_s) + self.host_s

    def together_s(self, compute_s: float, memory_s: float) -> float:
        """Seconds for so much computing and reading when they overlap."""
        q = self.overlap
        return float((compute_s**q + memory_s**q) ** (1.0 / q))


def plain(model: StepTimeModel) -> StepTime:
    """Step time of an engine that runs operators one after the other."""
    return model.step_s


@dataclass(slots=True)
class OfflineResult:
    """The results of a run. Times are virtual."""

    seconds: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    """Prompt tokens that were not found cached at the first admission."""
    preemptions: int = 0
    served: int = 0
    order: list[int] = field(default_factory=list)
    """The requests in the order in which they were sent."""

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens a second, as the paper counts throughput."""
        return (self.prompt_tokens + self.output_tokens) / max(self.seconds, 1e-9)

    @property
    def sharing_ratio(self) -> float:
        """Share of all prompt tokens that were found cached at the first admission."""
        return 1.0 - self.computed_tokens / max(1, self.prompt_tokens)


Watch = Callable[[float, float, BatchShape], None]
"""Called with a step's begin and duration in seconds, and what it computes."""


def run(
    tree: PrefixTree,
    outputs: Ints,
    feed: Feed,
    config: EngineConfig,
    step_s: StepTime,
    watch: Watch | None = None,
) -> OfflineResult:
    """Serve all requests of `tree` as `feed` says; their answers have `outputs` tokens, (n,).

    ValueError for a request that the engine's KV cache cannot hold.
    """
    _check(tree, outputs, config)
    engine = _Engine(feed, _Requests(tree, outputs, config), config, step_s, watch)
    while engine.go():
        pass
    assert engine.result.served == tree.requests, "every request is served once"
    return engine.result


class _Engine:
    """An engine, its clock and its feed."""

    def __init__(
        self,
        feed: Feed,
        requests: "_Requests",
        config: EngineConfig,
        step_s: StepTime,
        watch: Watch | None,
    ) -> None:
        self.result = OfflineResult()
        self._feed, self._requests, self._step_s, self._watch = feed, requests, step_s, watch
        self._twin = Twin(config, prefix_cache=True)
        self._waiting = 0

    def go(self) -> bool:
        """Make steps until something changes; False if nothing is left to do."""
        twin, feed, result = self._twin, self._feed, self.result
        chosen = feed.admit(self._waiting)
        result.order.extend(chosen)
        for request in chosen:
            twin.add(self._requests.sequence(request))
        if twin.idle:
            return False
        twin.limit_step(feed.step_tokens())
        made = twin.run(feed.unasked_steps())
        for row in made.shapes.tolist():
            shape = BatchShape(*row)
            seconds = self._step_s(shape)
            if self._watch is not None:
                self._watch(result.seconds, seconds, shape)
            result.seconds += seconds
        steps = len(made.shapes)
        assert steps, "an engine with requests makes a step"
        result.steps += steps
        result.preemptions += len(made.preempted)
        self._waiting += len(chosen) + len(made.preempted) - len(made.admitted)
        for seq in made.admitted:
            if not seq.preemptions:
                result.computed_tokens += seq.prompt_tokens - seq.cached_tokens
        feed.stepped(steps)
        for seq in made.finished:
            result.served += 1
            result.prompt_tokens += seq.prompt_tokens
            result.output_tokens += seq.output_tokens
            feed.ended(int(seq.request_id), seq.output_tokens)
        return True


def _check(tree: PrefixTree, outputs: Ints, config: EngineConfig) -> None:
    room = config.total_blocks * config.block_size_tokens - 2 * config.block_size_tokens
    tokens = tree.prompt_tokens + outputs
    if len(tokens) and int(tokens.max()) > min(room, config.max_model_len):
        raise ValueError(f"request {int(tokens.argmax())} does not fit into the engine's KV cache")


class _Requests:
    """The requests of a tree as the twin takes them."""

    def __init__(self, tree: PrefixTree, outputs: Ints, config: EngineConfig) -> None:
        self._prompts, self._outputs = tree.prompt_tokens.tolist(), outputs.tolist()
        self._parent, self._depth = tree.parent.tolist(), tree.depth.tolist()
        self._block = config.block_size_tokens
        self._latest: tuple[int, list[bytes]] = -1, []

    def sequence(self, request: int) -> Sequence:
        prompt, output = self._prompts[request], self._outputs[request]
        item = self._parent[request]
        if item != self._latest[0]:
            self._latest = item, self._keys(item)
        return Sequence(str(request), prompt, output, output, content=_Blocks(self._latest[1]))

    def _keys(self, item: int) -> list[bytes]:
        """Keys of the blocks that the children of `item` share."""
        keys: list[bytes] = []
        shared = self._depth[item] // self._block
        for block in reversed(range(shared)):
            while self._depth[self._parent[item]] >= (block + 1) * self._block:
                item = self._parent[item]
            keys.append(b"%d of %d" % (block, item))
        return keys[::-1]


class _Blocks(Content):
    """The content of a request, derived from its place in the tree, so that no tokens are kept."""

    __slots__ = ("_keys",)

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys

    @property
    def shared_blocks(self) -> int:
        return len(self._keys)

    def block_hash(self, index: int) -> bytes:
        return self._keys[index]
