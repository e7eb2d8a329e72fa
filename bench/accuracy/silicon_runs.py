"""Published measurements of vLLM on GPUs, and the twin under the same loads."""

import csv
import io
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from foretell.latency.linear import StepTimeModel
from foretell.latency.roofline import roofline_step_time, sharded
from foretell.latency.tables import profile_step_time
from foretell.model import GpuProfile
from foretell.sim.calibrate import HOST_SEQUENCE_S, HOST_STEP_S, HostTime
from foretell.sim.recorded import RecordedRequest, ReplayConfig, replay
from foretell.tools.files import read_bytes
from foretell.tools.profiles.imports import import_profile
from foretell.tools.profiles.options import ImportOptions
from foretell.tools.profiles.sizes import Datasheet, device_of, known_device, known_model, model_of

TABLES, DATASHEET = "tables", "datasheet"
STEP_TOKENS = 8192
"""`max_num_batched_tokens`: vLLM's default on such a device, and what InferenceMAX sets."""
_MINIMAX, _GPT_OSS = "MiniMax-M2.5", "gpt-oss-120b"
_SET_IN = "0.19.0"
"""From this vLLM on InferenceMAX sets KV cache and steps with MiniMax-M2.5; before, and with the
nightly build of before, it leaves them as they are in vLLM."""
_SPREAD_IN = "0.17.0"
"""With this vLLM it spreads experts as a whole over the devices, whatever the list says."""
_PROMPTS_A_STEP = 2
"""Prompts of the longest kind in a step, where it sets steps."""
_LLAMA, _B200 = "Llama-3.1-70B", "b200_sxm"
_FUSED_MIB = {2: 32.0, 4: 32.0, 8: 8.0}
"""By devices, the largest all-reduce that is fused, as InferenceMAX sets it with Llama on B200s."""
_ASKED = 10  # requests of each client, as InferenceMAX sends
_SHORTEST = 0.8  # of the longest prompt and answer, which are drawn evenly, as there
_TEACH = 3  # runs at least, of which two numbers are learnt
_WHOLE, _EIGHT_BIT, _EIGHT_BIT_BLOCKS, _FOUR_BIT = "bfloat16", "fp8", "fp8_block", "nvfp4"
_EXPERTS_FOUR_BIT = "w4a16_mxfp4"
_BITS = {_WHOLE: 16, _EIGHT_BIT: 8, _EIGHT_BIT_BLOCKS: 8, _FOUR_BIT: 4, _EXPERTS_FOUR_BIT: 4}
"""Bits of weights, by aiconfigurator's names; those in blocks are of models published so."""
_WEIGHTS = {"": _WHOLE, "bf16": _WHOLE, "fp8": _EIGHT_BIT, "fp4": _FOUR_BIT}
_HOSTS = (HostTime(), HostTime(step_s=HOST_STEP_S), HostTime(sequence_s=HOST_SEQUENCE_S))


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: a load on an engine."""

    system: str
    model: str
    weights: str
    devices: int
    prompt_tokens: int
    output_tokens: int
    clients: int
    ttft_s: float
    tpot_s: float
    expert_parallel: bool = False
    version: str = ""
    """Version of vLLM; empty: it is not told."""

    @property
    def bits(self) -> int:
        """Bits of a weight. With fewer than 16, as InferenceMAX sets it, steps overlap."""
        return _BITS[self.weights]

    @property
    def kv_cache(self) -> str:
        """Type of the KV cache; empty: 16 bits. With gpt-oss InferenceMAX sets it on B200s only."""
        if self.model == _GPT_OSS:
            return _EIGHT_BIT if self.system == _B200 else ""
        return _EIGHT_BIT if self.bits < _BITS[_WHOLE] and not self._has_defaults else ""

    @property
    def step_tokens(self) -> int:
        """`max_num_batched_tokens`."""
        if self.model == _MINIMAX and not self._has_defaults:
            return _PROMPTS_A_STEP * self.prompt_tokens
        return STEP_TOKENS

    @property
    def fused_all_reduce_mib(self) -> float | None:
        """The largest all-reduce that vLLM fuses with the norm behind it; None: its default.

        The versions with which Llama and Qwen were run did not unless they were told to.
        """
        if self.model in (_MINIMAX, _GPT_OSS):
            return None
        is_told = (self.model, self.system) == (_LLAMA, _B200)
        return _FUSED_MIB.get(self.devices, 0.0) if is_told else 0.0

    @property
    def _has_defaults(self) -> bool:
        """Whether InferenceMAX leaves KV cache and steps as they are in vLLM."""
        return self.model == _MINIMAX and self.version != _SET_IN

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Runs with the same host time."""
        return self.system, self.model, self.weights, self.version


def runs_of(data: Path) -> tuple[list[Run], list[str]]:
    """The runs of vLLM below `data` that can be played, and why others are left out."""
    found: dict[Run, None] = {}
    left_out: Counter[str] = Counter()
    for path in sorted(data.rglob("silicon_e2e*.csv*")):
        for row in csv.DictReader(io.StringIO(read_bytes(path).decode())):
            if (row["backend"], row["mode"]) != ("vllm", "agg"):
                continue
            if why := _unplayable(row, data):
                kind = row["precision"] or "bf16"
                left_out[f"{row['model_path']}, {kind}, {row['system']}: {why}"] += 1
            else:
                found[_run(row)] = None
    played: list[Run] = []
    for (system, model, weights, version), runs in groupby(
        sorted(found, key=_order), lambda r: r.group
    ):
        group = list(runs)
        if len(first_of(group)) >= _TEACH:
            played += group
        else:
            why = "too few runs to learn the host's time from"
            left_out[f"{model}, {weights}, {system}, vLLM {version or '?'}: {why}"] += len(group)
    return played, [f"{what} ({n} runs)" for what, n in left_out.items()]


def _unplayable(row: dict[str, str], data: Path) -> str:
    model = known_model([row["model_path"].rpartition("/")[2]])
    if not (known_device([row["system"]]) and tables_of(row["system"], data)):
        return "there are no tables of the system"
    if not model:
        return "the model is not known"
    if float(row.get("attention_dp_size") or 1) > 1:
        return "attention is data-parallel"
    return "" if row["precision"] in _WEIGHTS else "the weights are of a kind that is not played"


def _run(row: dict[str, str]) -> Run:
    model = known_model([row["model_path"].rpartition("/")[2]])
    weights = _WEIGHTS[row["precision"]]
    if model == _GPT_OSS:
        weights = _EXPERTS_FOUR_BIT
    blocks = weights == _EIGHT_BIT and model_of(model).bytes_per_parameter < 2.0
    devices, prompt, output, clients = (
        int(float(row[name])) for name in ("tp_size", "isl", "osl", "batch_size")
    )
    ttft_s, tpot_s = (float(row[f"silicon_{name}_ms"]) / 1e3 for name in ("ttft", "tpot"))
    version = row.get("backend_version") or ""
    whole = float(row.get("moe_ep_size") or 1) > 1 or (model, version) == (_MINIMAX, _SPREAD_IN)
    kind = _EIGHT_BIT_BLOCKS if blocks else weights
    load = prompt, output, clients, ttft_s, tpot_s
    return Run(row["system"], model, kind, devices, *load, whole, version)


def _order(run: Run) -> tuple[Any, ...]:
    load = run.prompt_tokens, run.output_tokens, run.clients
    return (run.group, run.devices, run.expert_parallel, load)


def tables_of(system: str, data: Path) -> Path | None:
    """The folder of a system's kernel tables."""
    return next((path for path in sorted(data.rglob(system)) if path.is_dir()), None)


def profile_of(data: Path, run: Run) -> GpuProfile:
    """What the tables say; ProfileError where they lack something."""
    folder = tables_of(run.system, data)
    assert folder is not None, "runs without tables are left out"
    return _imported(
        ImportOptions(
            "aiconfigurator",
            folder,
            known_device([run.system]),
            run.model,
            tensor_parallel=run.devices,
            expert_parallel=run.expert_parallel,
            weights=run.weights,
            kv_cache=run.kv_cache,
            fused_all_reduce_mib=run.fused_all_reduce_mib,
        )
    )


_imported = lru_cache(maxsize=32)(import_profile)


@dataclass(frozen=True, slots=True)
class Case:
    """A run to be played, with step times from `source` and the host's time added."""

    run: Run
    source: str
    host: HostTime


def play(case: Case, data: Path) -> tuple[float, float]:
    """Mean TTFT and TPOT in seconds, as the twin has them."""
    run = case.run
    profile = profile_of(data, run)
    longest = run.prompt_tokens + run.output_tokens
    engine = profile.engine(
        max_num_seqs=max(256, run.clients),
        max_num_scheduled_tokens=run.step_tokens,
        max_model_len=longest + 1,
        async_scheduling=run.bits < _BITS[_WHOLE],
    )
    draws = random.Random(1)

    def drawn(most: int) -> int:
        return max(1, round(most * draws.uniform(_SHORTEST, 1.0)))

    requests = [
        RecordedRequest(str(i), drawn(run.prompt_tokens), drawn(run.output_tokens), 0.0)
        for i in range(_ASKED * run.clients)
    ]
    model = case.host.added_to(_model(case.source, profile, run))
    latencies = replay(requests, ReplayConfig(engine), model, clients=run.clients)
    return fmean(one.ttft_s for one in latencies), fmean(one.tpot_s for one in latencies)


def _model(source: str, profile: GpuProfile, run: Run) -> StepTimeModel:
    if source == TABLES:
        return profile_step_time(profile)
    device, whole = device_of(known_device([run.system]), Datasheet()), model_of(run.model)
    if run.bits < _BITS[_WHOLE] and run.model != _GPT_OSS:  # whose sizes are those of its experts
        device = replace(device, flops=_BITS[_WHOLE] / run.bits * device.flops)
        whole = replace(whole, bytes_per_parameter=run.bits / 8.0)
    if run.kv_cache:
        whole = replace(whole, kv_bytes_per_number=1.0)
    return roofline_step_time(*sharded(device, whole, run.devices))


def learnt(group: list[Run], source: str, tpots_s: dict[Case, float]) -> HostTime:
    """The host's time under which the TPOTs of the runs with the fewest devices are nearest.

    A TPOT is linear in both of its parts but for what a request waits.
    """
    slopes, left = [], []
    for run in first_of(group):
        alone, *others = (tpots_s[Case(run, source, host)] for host in _HOSTS)
        slopes.append([(other - alone) / run.tpot_s for other in others])
        left.append((run.tpot_s - alone) / run.tpot_s)
    step, sequence = nnls(np.array(slopes), np.array(left))[0]
    return HostTime(step * HOST_STEP_S, sequence * HOST_SEQUENCE_S)


def trials(group: list[Run], source: str) -> list[Case]:
    """What `learnt` needs to be played."""
    return [Case(run, source, host) for run in first_of(group) for host in _HOSTS]


def first_of(group: list[Run]) -> list[Run]:
    """The runs from which is learnt."""
    fewest = min(run.devices for run in group)
    return [run for run in group if run.devices == fewest]
