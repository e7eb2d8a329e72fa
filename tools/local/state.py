"""What a local cluster tells about itself in `<run_dir>/cluster.json`, and holds in memory."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from services.process import runtime
from tools.local.cluster import ClusterPlan, Process

ComponentState = Literal["starting", "ready", "restarting", "dead", "stopped"]
ClusterPhase = Literal["starting", "ready", "stopping", "stopped", "failed"]
ComponentKind = Literal["tagger", "launcher", "engine", "predictor", "scheduler"]


@dataclass(slots=True)
class Component:
    """One process as an operator sees it; pid 0 while there is none."""

    name: str
    kind: ComponentKind
    address: str
    pid: int = 0
    state: ComponentState = "starting"
    restarts: int = 0


@dataclass(slots=True)
class EngineParts:
    """What one launcher runs."""

    engine: Component
    predictor: Component


@dataclass(slots=True)
class ClusterState:
    """Everything `cluster.json` holds. `write` after each change: readers see whole versions."""

    path: Path
    endpoint: str
    engine: str  # "emulated" or "vllm"
    phase: ClusterPhase = "starting"
    model_name: str = ""
    processes: dict[str, Component] = field(default_factory=dict)  # by process name
    parts: dict[str, EngineParts] = field(default_factory=dict)  # by launcher name

    @classmethod
    def of(cls, plan: ClusterPlan, engine: str, path: Path) -> "ClusterState":
        state = cls(path, plan.endpoint, engine)
        for process in plan.processes:
            state.processes[process.name] = _component(process)
        for instance in plan.instances:
            name = instance["instance_id"]
            state.parts[name] = EngineParts(
                Component(name, "engine", instance["url"]),
                Component(f"{name}.predictor", "predictor", instance["predictor"]),
            )
        return state

    def components(self) -> list[Component]:
        """Every process of the cluster, a launcher after what it runs."""
        found: list[Component] = []
        for name, component in self.processes.items():
            if parts := self.parts.get(name):
                found += [parts.engine, parts.predictor]
            found.append(component)
        return found

    def write(self) -> None:
        runtime.announce(
            str(self.path),
            state=self.phase,
            endpoint=self.endpoint,
            engine=self.engine,
            model_name=self.model_name,
            components=[asdict(component) for component in self.components()],
        )


def _component(process: Process) -> Component:
    if process.kind == "launcher":
        return Component(f"{process.name}.launcher", "launcher", "")
    return Component(process.name, process.kind, process.address)
