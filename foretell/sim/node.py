"""An instance with its predictor, and their faults."""

from collections.abc import Callable

from foretell.engine import Sequence
from foretell.engine.batch import FreeBlocks
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.table import EngineTable
from foretell.latency.linear import StepTimeModel
from foretell.sim.config import ClusterConfig, SimInstanceConfig
from foretell.sim.events import Events
from foretell.sim.instance import SimInstance
from foretell.sim.predictor import Camera, Link, SimPredictor


class Node:
    """One place of the cluster: its engine, dead or alive, and its predictor."""

    def __init__(
        self,
        index: int,
        cluster: ClusterConfig,
        table: EngineTable,
        camera: Camera,
        events: Events,
        *,
        is_awaited: Callable[[], bool],
        counted_s: tuple[float, float],
        present: bool = True,
    ) -> None:
        """`is_awaited`: whether requests are still to come or to end. `counted_s`: start and end of
        the time over which free blocks are summed. `present`: there is an engine from the start."""
        self.index = index
        self.instance_id = f"engine-{index}"
        self.generation = 0
        """Number of the engine here; what was sent to an earlier one is not delivered."""
        self.heard = True
        """Whether its snapshots arrive."""
        self.up = self.present = present
        """Whether the engine is alive; whether the cluster has an instance here, dead or alive."""
        self.dead_steps = self.dead_tokens = 0
        self.dead_free: list[FreeBlocks] = []
        self.predictor: SimPredictor | None = None
        """None while the predictor is dead or has no followers, or the engine is dead."""
        self._links: list[Link] = []
        self._config: SimInstanceConfig = cluster.instances[index]
        self._cluster = cluster
        self._table = table
        self._camera = camera
        self._events = events
        self._is_awaited = is_awaited
        self._counted_s = counted_s
        self.instance = self._new_instance(counted_s[0])

    @property
    def believed_step_time(self) -> StepTimeModel:
        """The step times that its predictor believes, at first if it calibrates them."""
        return self._config.believed_step_time or self._config.step_time

    @property
    def steps(self) -> int:
        """Steps of all the engines that were here."""
        return self.dead_steps + self.instance.twin.steps

    @property
    def computed_tokens(self) -> int:
        """Tokens computed in all steps of all the engines that were here."""
        return self.dead_tokens + self.instance.twin.computed_tokens

    def follow(self, link: Link) -> None:
        """Let a scheduler follow its predictor from now on."""
        self._links.append(link)
        if self.predictor is None and self.up:
            self.begin_predictor()
        else:
            link.connect(self.predictor)

    def begin_predictor(self) -> None:
        """Start a new predictor, which first hears the current state of its engine."""
        self.end_predictor()
        if not self._links:
            return
        config, cluster = self._config.engine, self._cluster
        predicts_hits = cluster.prefix_cache and cluster.predict_hits
        follows_prefixes = predicts_hits and config.enable_prefix_caching
        self.predictor = SimPredictor(
            self.index,
            self.instance,
            self.believed_step_time,
            self._camera,
            self._events,
            dispatch_delay_s=cluster.dispatch_delay_s,
            interval_s=cluster.publish_interval_s,
            is_heard=lambda: self.heard and self.up,
            is_awaited=self._is_awaited,
            prefixes=PrefixIndex(config) if follows_prefixes else None,
            learns=cluster.learn_step_times,
        )
        for link in self._links:
            link.connect(self.predictor)

    def end_predictor(self) -> None:
        """End its predictor; its reservations are lost."""
        if self.predictor is not None:
            self.predictor.publisher.close()
            self.predictor = None
            for link in self._links:
                link.connect(None)

    def restart(self, now_s: float) -> None:
        """Start a new, empty engine with a new predictor."""
        self.dead_steps += self.instance.twin.steps
        self.dead_tokens += self.instance.twin.computed_tokens
        self.generation += 1
        self.up = True
        self.instance = self._new_instance(now_s)
        self.begin_predictor()

    def die(self, now_s: float) -> list[tuple[str, bool]]:
        """Remove the engine and its predictor; returns what `SimInstance.die` does."""
        self.up = False
        self.generation += 1
        self.dead_free.append(self.instance.twin.free_blocks_so_far(now_s))
        self.end_predictor()
        return self.instance.die()

    def free_blocks(self, now_s: float) -> list[FreeBlocks]:
        """The sums of free blocks of all the engines that were here."""
        living = [self.instance.twin.free_blocks_so_far(now_s)] if self.up else []
        return self.dead_free + living

    def changed(self) -> None:
        """Tell the publisher that the engine's state has changed."""
        if self.predictor is not None:
            self.predictor.publisher.changed()

    def served(self, seq: Sequence) -> None:
        """Tell the predictor that the engine has finished a request."""
        if self.predictor is not None:
            self.predictor.served(seq.request_id, seq.cached_tokens, seq.prompt_tokens)

    def _new_instance(self, now_s: float) -> SimInstance:
        since_s, until_s = self._counted_s
        return SimInstance(
            self.instance_id,
            self._config,
            self._table,
            self.index,
            prefix_cache=self._cluster.prefix_cache,
            counted_s=(max(since_s, now_s), until_s),
        )
