"""The state of a local cluster, in memory and in `<run_dir>/cluster.json`."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from foretell.config.layout import Layout, served_name
from foretell.services.process import runtime
from foretell.services.process.keeper import State
from foretell.tools.local.plan import ClusterPlan, Kind, Process

ClusterPhase = Literal["starting", "ready", "stopped", "failed"]
ComponentKind = Kind | Literal["engine", "predictor"]


@dataclass(slots=True)
class Component:
    """One process as an operator sees it; pid 0 while there is none."""

    name: str
    kind: ComponentKind
    address: str
    pid: int = 0
    state: State = "starting"
    restarts: int = 0


@dataclass(slots=True)
class EngineParts:
    """The processes that one launcher runs."""

    engine: Component
    predictor: Component
    emulated: bool


@dataclass(slots=True)
class ClusterState:
    """The content of `cluster.json`. Call `write` after each change: it replaces the whole file."""

    path: Path
    endpoint: str
    emulated: bool  # whether any engine is emulated
    api_key: str = field(default="", repr=False)  # never written
    phase: ClusterPhase = "starting"
    model_name: str = ""
    processes: dict[str, Component] = field(default_factory=dict)  # by process name
    parts: dict[str, EngineParts] = field(default_factory=dict)  # by launcher name

    @classmethod
    def of(cls, plan: ClusterPlan, path: Path, *, api_key: str = "") -> "ClusterState":
        """The state of a plan before any of its processes are started.

        `api_key` is one that its schedulers accept; "": they want none.
        """
        engines = plan.layout.cluster.engine_list()
        emulated = any(engine.section.kind == "emulated" for engine in engines)
        state = cls(path, plan.endpoint, emulated, api_key)
        for process in plan.processes:
            if process.kind != "launcher" or not plan.comes_and_goes:
                state.add(process, plan.layout)
        if plan.comes_and_goes or not engines[0].section.is_started:
            state.model_name = served_name(engines[0])
        return state

    def add(self, process: Process, layout: Layout) -> None:
        """Add a process that is not started yet; a launcher with what it runs."""
        name = process.program.name
        self.processes[name] = _component(process)
        if process.kind == "launcher":
            engine = layout.engine(name)
            url, predictor = layout.engine_url(engine), layout.predictor_address(engine)
            self.parts[name] = EngineParts(
                Component(name, "engine", url),
                Component(f"{name}.predictor", "predictor", predictor),
                engine.section.kind == "emulated",
            )

    def remove(self, name: str) -> None:
        """Remove a process from the cluster."""
        self.processes.pop(name, None)
        self.parts.pop(name, None)

    @property
    def schedulers(self) -> list[str]:
        """The addresses of all replicas, each with its own port."""
        return [each.address for each in self.processes.values() if each.kind == "scheduler"]

    def components(self) -> list[Component]:
        """Every process of the cluster; a launcher comes after what it runs."""
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
            emulated=self.emulated,
            model_name=self.model_name,
            components=[asdict(component) for component in self.components()],
        )


def _component(process: Process) -> Component:
    name = process.program.name
    if process.kind == "launcher":
        return Component(f"{name}.launcher", "launcher", "")
    return Component(name, process.kind, process.address)
