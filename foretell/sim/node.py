"""An instance with its predictor, and what ails them."""

from collections.abc import Callable

from foretell.engine import Sequence
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.table import EngineTable
from foretell.engine.twin import FreeBlocks
from foretell.kernel.step_time import StepTime
from foretell.sim.config import ClusterConfig, InstanceConfig
from foretell.sim.instance import Instance
from foretell.sim.predictor import SimForecaster, SimPredictor


class Node:
    """One place of the cluster: its engine, dead or alive, and its predictor."""

    def __init__(
        self,
        index: int,
        cluster: ClusterConfig,
        table: EngineTable,
        forecaster: SimForecaster,
        *,
        watched: bool,
        counted_s: tuple[float, float],
        present: bool = True,
    ) -> None:
        """`watched`: somebody asks its predictor, so snapshots are taken. `present`: the engine is
        there from the beginning."""
        self.index = index
        self.instance_id = f"engine-{index}"
        self.generation = 0
        """Number of the engine here; what was meant for an earlier one reaches nobody."""
        self.heard = self.answers = True
        """Its snapshots arrive; its predictor lives."""
        self.up = self.present = present
        """It lives; the cluster has an instance here, dead or alive."""
        self.publish_pending = False
        self.dead_steps = self.dead_tokens = 0
        self.dead_free: list[FreeBlocks] = []
        self._config: InstanceConfig = cluster.instances[index]
        self._cluster = cluster
        self._table = table
        self._forecaster = forecaster
        self._watched = watched
        self._counted_s = counted_s
        self._seen = -1  # the version of the instance that its predictor knows
        self.instance = self._new_instance(counted_s[0])
        self.predictor = self._new_predictor()
        self.publish(0.0)

    @property
    def believed_step_time(self) -> StepTime:
        """How long its engine's steps take, as its predictor believes."""
        return (self._config.believed_step_time or self._config.step_time).packed()

    @property
    def steps(self) -> int:
        """Steps of all the engines that were here."""
        return self.dead_steps + self.instance.twin.steps

    @property
    def computed_tokens(self) -> int:
        """Tokens computed in all steps of all the engines that were here."""
        return self.dead_tokens + self.instance.twin.computed_tokens

    def restart(self, now_s: float) -> None:
        """A new engine, empty, and a predictor that knows it."""
        self.dead_steps += self.instance.twin.steps
        self.dead_tokens += self.instance.twin.computed_tokens
        self.generation += 1
        self.up = True
        self.instance = self._new_instance(now_s)
        self.forget(now_s)

    def die(self, now_s: float) -> list[tuple[str, bool]]:
        """The engine is gone; returns whom that befalls, as `Instance.die`."""
        self.up = False
        self.generation += 1
        self.dead_free.append(self.instance.twin.free_blocks_so_far(now_s))
        return self.instance.die()

    def forget(self, now_s: float) -> None:
        """The predictor starts anew; what it hears first is how its engine is now."""
        self.predictor = self._new_predictor()
        self.publish(now_s)

    def free_blocks(self, now_s: float) -> list[FreeBlocks]:
        """The sums of all the engines that were here."""
        living = [self.instance.twin.free_blocks_so_far(now_s)] if self.up else []
        return self.dead_free + living

    def hears_questions(self, now_s: float) -> bool:
        """Whether its predictor answers; what it knows is then as fresh as can be."""
        if self._cluster.publish_interval_s == 0:
            self._show(now_s)
        return self.answers and self._seen >= 0

    def age_s(self, now_s: float) -> float:
        """Seconds since its predictor last heard of the engine."""
        every_change = self._cluster.publish_interval_s == 0 and self.heard and self.up
        heard_s = self.instance.changed_s if every_change else self.predictor.published_s
        return max(0.0, now_s - heard_s)

    def changed(self, now_s: float, later: Callable[[float], None]) -> None:
        """The engine's state has changed.

        With a publishing interval, `later` is called with the time of the next snapshot if that is
        not now. Without one every change is published, and looked at when somebody asks.
        """
        interval_s = self._cluster.publish_interval_s
        if interval_s == 0 or not self._watched:
            return
        due_s = self.predictor.published_s + interval_s
        if now_s >= due_s:
            self.publish(now_s)
        elif not self.publish_pending:
            self.publish_pending = True
            later(due_s)

    def served(self, seq: Sequence) -> None:
        """The engine has ended a request, which snapshots have shown if none was left out."""
        shown = seq if self._cluster.publish_interval_s == 0 and self.heard else None
        self.predictor.complete(seq.request_id, answered=True, shown=shown)

    def publish(self, now_s: float) -> None:
        """The predictor hears what is new."""
        self._show(now_s)
        self._forecaster.take(now_s)

    def _show(self, now_s: float) -> None:
        """Publish like `publish`, but the picture is taken together with those of others."""
        version = self.instance.version
        reaches = self._watched and self.up and self.heard and self.answers
        if reaches and self._seen != version:
            self._seen = version
            self.predictor.see(self.instance, now_s)

    def _new_instance(self, now_s: float) -> Instance:
        since_s, until_s = self._counted_s
        return Instance(
            self.instance_id,
            self._config,
            self._table,
            self.index,
            prefix_cache=self._cluster.prefix_cache,
            counted_s=(max(since_s, now_s), until_s),
        )

    def _new_predictor(self) -> SimPredictor:
        self._seen = -1
        config, cluster = self._config, self._cluster
        told = cluster.prefix_cache and cluster.predict_hits and config.engine.enable_prefix_caching
        return SimPredictor(
            self.index,
            self.instance_id,
            config.engine,
            self.believed_step_time,
            self._forecaster,
            prefixes=PrefixIndex(config.engine) if told else None,
        )
