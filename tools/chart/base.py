"""What the values of the Helm chart are made of: names, Secrets, images, pods."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Object = dict[str, Any]
Name = Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
NameOrNone = Annotated[str, Field(pattern="^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$")]
Objects = list[Object]
LONGEST_NAME = 24
"""Characters of a model's name in Kubernetes: labels of its pods have 63, with others before it."""


class Values(BaseModel):
    """A part of the values; what is not known is an error."""

    model_config = ConfigDict(extra="forbid", defer_build=True, alias_generator=to_camel)


class SecretKey(Values):
    """A key of a Secret in the release's namespace. Charts make no Secrets."""

    name: Name
    """Name of the Secret."""
    key: str = Field(min_length=1)
    """Its key."""


class Image(Values):
    """The image of all services that need no GPU."""

    repository: str = Field(min_length=1)
    """Registry and name."""
    tag: str
    """Empty: the chart's version, and with `batch.enabled` -storage behind it."""
    digest: str = Field(pattern="^(sha256:[0-9a-f]{64})?$")
    """Digest, which goes before the tag; empty: none."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"]
    """When nodes pull this image and those of engines."""
    pull_secrets: list[Name]
    """Names of the Secrets that the registries want."""


class VllmImage(Values):
    """vLLM's image with our plugin."""

    repository: str = Field(min_length=1)
    """Registry and name."""
    tag: str
    """Empty: the chart's version."""


class Resources(Values):
    """As a container's `resources` has them."""

    requests: Object = Field(default_factory=dict)
    """What is reserved."""
    limits: Object = Field(default_factory=dict)
    """What there is at most."""


class Pods(Values):
    """Where pods run."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of their nodes."""
    tolerations: Objects = Field(default_factory=list)
    """Taints that they tolerate."""
    affinity: Object = Field(default_factory=dict)
    """Their affinity, beside the spread."""
    priority_class_name: NameOrNone = ""
    """Their priority class; empty: that of `priorityClasses`, if made, else none."""
    runtime_class_name: NameOrNone = ""
    """Their runtime class, such as nvidia; empty: the default."""
    scheduler_name: NameOrNone = ""
    """Who puts them on nodes, such as kueue or volcano; empty: Kubernetes' own scheduler."""
    labels: dict[str, str] = Field(default_factory=dict)
    """More labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """More annotations."""
    env: Objects = Field(default_factory=list)
    """More variables of the main container, as Kubernetes has them."""
