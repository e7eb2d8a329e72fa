"""The chart's values for a cluster that a cluster file describes."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretell.config import Cluster, ClusterError
from foretell.config.cluster import ClusterEngine
from foretell.config.layout import served_name
from foretell.config.sections import BatchOptions, ProvisionOptions, SchedulerOptions, TaggerOptions
from foretell.tools.chart.values import ClusterObservability

Values = dict[str, Any]

LONGEST_NAME = 24
"""The longest name of a model in Kubernetes: it is part of pod labels of at most 63 characters."""
_KEYS = {"api_keys_file": "apiKeys", "engine_api_key_file": "engineApiKey"}
"""Files of keys, and the Secrets that hold them on Kubernetes."""


def values_of(cluster: Cluster, given: Mapping[str, Any]) -> Values:
    """The values of a cluster, overridden by `given`.

    Raises ClusterError, which names all fields that no pod can have.
    """
    problems = list(_without_a_place(cluster, given))
    if problems:
        raise ClusterError("\n".join(problems))
    models: list[Values] = []
    kinds = {id(engine.section): engine for engine in reversed(cluster.engine_list())}
    for engine in reversed(kinds.values()):
        models.append(_model(engine, {each["name"] for each in models}))
    if cluster.provisioning.enabled:
        bounds = cluster.provisioning.model_dump(include={"minimum", "maximum"})
        models = [models[0] | {"replicas": 1, "autoscaling": {"by": "provisioner", **bounds}}]
    scheduler_fields = {*SchedulerOptions.model_fields} - {*_KEYS}
    provision_fields = {*ProvisionOptions.model_fields} - {"minimum", "maximum"}
    found = {
        "models": models,
        "cluster": {
            "policy": _set(cluster.policy),
            "targets": _set(cluster.targets),
            "schedulers": _set(cluster.schedulers, scheduler_fields),
            "tagger": _set(cluster.tagger, {*TaggerOptions.model_fields}),
            "observability": _set(cluster.observability, {*ClusterObservability.model_fields}),
            "provisioning": _set(cluster.provisioning, provision_fields),
            "batches": _set(cluster.batches, {*BatchOptions.model_fields} - {"folder"}),
        },
        "schedulers": {"replicas": cluster.schedulers.replicas},
        "batch": {"enabled": bool(cluster.batches.folder)},
    }
    return _over(found, given)


def _model(engine: ClusterEngine, taken: set[str]) -> Values:
    """The item of `models` for the engines of one section."""
    section = engine.section
    served = served_name(engine)
    found = {
        "name": _name(section.name or served, taken),
        "model": served,
        "path": engine.model.path,
        "kind": section.kind,
        "replicas": section.engines,
        "gpus": section.gpus,
        "profile": section.profile,
        "offline": section.offline,
        "args": shlex.split(engine.model.args) + shlex.split(section.args),
    }
    return {key: value for key, value in found.items() if value not in ("", [], False)}


def _name(wanted: str, taken: set[str]) -> str:
    """A name that Kubernetes accepts and that is not `taken`."""
    plain = re.sub("[^a-z0-9]+", "-", wanted.rpartition("/")[2].lower()).strip("-") or "engine"
    for number in range(len(taken) + 1):
        ending = f"-{number}" if number else ""
        name = plain[: LONGEST_NAME - len(ending)].strip("-") + ending
        if name not in taken:
            return name
    raise AssertionError("one of more names than are taken is free")


def _set(section: Any, fields: set[str] | None = None) -> Values:
    """The fields of a section that the file sets; the chart has the same defaults for others."""
    return section.model_dump(include=fields, exclude_unset=True)  # type: ignore[no-any-return]


def _without_a_place(cluster: Cluster, given: Mapping[str, Any]) -> Iterator[str]:
    """Errors for fields that no pod can have, such as files and folders of this host."""
    for engines in cluster.engines:
        if engines.url:
            yield "engines.url: the chart has no engines that somebody else starts"
    secrets = given.get("secrets") or {}
    for field, secret in _KEYS.items():
        if getattr(cluster.schedulers, field) and not secrets.get(secret):
            yield f"schedulers.{field}: a Secret holds keys there; name it in secrets.{secret}"
    for model, section in cluster.models.items():
        if Path(section.path).is_absolute() and "models" not in given:
            yield f"models.{model}.path: no pod has this folder; give `models` with their paths"
    for field, path in (
        ("schedulers.tokenizer", cluster.schedulers.tokenizer),
        ("schedulers.length_model", cluster.schedulers.length_model),
        ("schedulers.https_certificate", cluster.schedulers.https_certificate),
        ("tagger.model", cluster.tagger.model),
        ("tagger.checkpoint", cluster.tagger.checkpoint),
    ):
        if Path(path).is_absolute():
            yield f"{field}: no pod has this file of the host; leave it out"


def _over(below: Values, above: Mapping[str, Any]) -> Values:
    """Merge values as Helm does: mappings by key, everything else as a whole."""
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = _over(found[key], value) if both else value
    return found
