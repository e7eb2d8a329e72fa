"""Values of the Helm chart: engines, and the services in front of them."""

from typing import Annotated, Literal

from pydantic import Field

from foretell.config.sections import Profile
from foretell.tools.chart.base import (
    LONGEST_NAME,
    Name,
    NameOrNone,
    Objects,
    Pods,
    Quantity,
    Resources,
    SecretKey,
    Values,
)


class Cache(Values):
    """Where vLLM keeps weights of the hub."""

    claim_name: NameOrNone = ""
    """A claim that all engines of the model share; it must allow that."""
    size: Annotated[str, Field(pattern="^([0-9]+(Gi|Ti|G|T))?$")] = ""
    """Size of a claim for each engine; empty, and without claimName: the pod's own disk."""
    storage_class_name: NameOrNone = ""
    """Its storage class; empty: the default."""


class Autoscaling(Values):
    """Who decides how many engines a model has."""

    by: Literal["none", "hpa", "keda", "provisioner"] = "none"
    """`hpa`: an HPA on `metrics`; `keda`: KEDA, by the provisioner's number; `provisioner`: the
    provisioner itself, which drains engines before they go."""
    minimum: int = Field(1, ge=0, le=1000)
    """Engines that there are at least."""
    maximum: int = Field(1, ge=1, le=1000)
    """Engines that there are at most."""
    metrics: Objects = Field(default_factory=list)
    """Metrics of the HPA, as autoscaling/v2 has them."""


class Model(Pods):
    """Engines that serve one model, alike."""

    name: str = Field(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=LONGEST_NAME)
    """Name in Kubernetes: the StatefulSet is RELEASE-foretell-NAME."""
    model: str = Field(min_length=1)
    """Name that clients ask for. Several items may serve one."""
    path: str = ""
    """vLLM: name on the hub, or a folder in the image or cache; empty: `model`."""
    kind: Literal["vllm", "emulated"] = "vllm"
    """`emulated` needs neither GPU nor model, and answers with meaningless words."""
    image: str = ""
    """Another image for these engines; empty: that of `vllmImage`."""
    replicas: int = Field(1, ge=1, le=1000)
    """Number of engines, unless `autoscaling` decides."""
    gpus: int = Field(1, ge=1, le=64)
    """GPUs of each engine on each of its nodes, for tensor parallelism."""
    nodes: int = Field(1, ge=1, le=64)
    """Nodes of each engine, for pipeline parallelism; above 1 it needs LeaderWorkerSet."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the resource that GPUs are."""
    profile: Profile = ""
    """GPU profile DEVICE/MODEL that predictions start from; that of an emulated engine."""
    offline: bool = False
    """Whether these engines serve offline requests beside online ones."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """LoRA adapters by the names that clients ask for: names on the hub, or folders."""
    args: list[str] = Field(default_factory=list)
    """Further flags, one item each: --max-model-len=16384."""
    resources: Resources = Field(default_factory=Resources)
    """CPU and memory; GPUs come from `gpus`."""
    shared_memory: Quantity = "8Gi"
    """Size of /dev/shm."""
    cache: Cache = Field(default_factory=Cache)
    """Where weights are kept."""
    extra_volumes: Objects = Field(default_factory=list)
    """More volumes of vLLM's pods."""
    extra_volume_mounts: Objects = Field(default_factory=list)
    """More mounts of vLLM's container."""
    init_containers: Objects = Field(default_factory=list)
    """Containers that run before the engine, such as one that fetches weights."""
    start_seconds: int = Field(1800, ge=10)
    """Longest time until an engine must serve; then it is started anew."""
    drain_seconds: int = Field(0, ge=0)
    """Time that requests get to end when a pod goes; 0: as long as the schedulers give."""
    autoscaling: Autoscaling = Field(default_factory=Autoscaling)
    """Who decides how many there are."""


class SchedulerService(Values):
    """The Service of the OpenAI endpoint."""

    type: Literal["ClusterIP", "LoadBalancer", "NodePort"]
    """Its type."""
    annotations: dict[str, str]
    """Its annotations."""


class SchedulerAutoscaling(Values):
    """An HPA for schedulers."""

    enabled: bool
    """Whether there is one."""
    minimum: int = Field(ge=1, le=16)
    """Replicas that there are at least."""
    maximum: int = Field(ge=1, le=16)
    """Replicas that there are at most."""
    metrics: Objects
    """Metrics, as autoscaling/v2 has them."""


class Schedulers(Pods):
    """The pods of the OpenAI endpoint."""

    replicas: int = Field(ge=1, le=16)
    """Number of replicas, unless `autoscaling` decides."""
    resources: Resources
    """CPU and memory. A replica uses one core."""
    endpoint_removal_seconds: int = Field(ge=1, le=300)
    """Time until proxies have heard that a pod goes, before it drains."""
    service: SchedulerService
    """Its Service."""
    autoscaling: SchedulerAutoscaling
    """An HPA."""


class Tagger(Pods):
    """The pods of the tagger."""

    enabled: bool
    """Whether there is one; without it lengths are estimated by schedulers alone."""
    replicas: int = Field(ge=1, le=16)
    """Number of replicas; each learns by itself."""
    resources: Resources
    """CPU and memory."""


class Predictor(Values):
    """The sidecar of every engine."""

    resources: Resources
    """CPU and memory."""
    env: Objects
    """More variables."""


class Provisioner(Pods):
    """The pods of the provisioner, where a model's `autoscaling` asks for one."""

    replicas: int = Field(ge=1, le=5)
    """Number of replicas, one of which is active; the others take over within 15 s."""
    resources: Resources
    """CPU and memory."""
    size: Quantity
    """Size of the claim of each for its record of decisions."""
    storage_class_name: NameOrNone
    """Its storage class; empty: the default."""


class ObjectStorage(Values):
    """Credentials of S3."""

    name: Name
    """The Secret that has them."""
    access_key_id_key: str = Field("access-key-id", min_length=1)
    """Its key of the access key's id."""
    secret_access_key_key: str = Field("secret-access-key", min_length=1)
    """Its key of the secret access key."""
    endpoint_url: str = ""
    """Another address than AWS's; empty: AWS's."""


class Batch(Pods):
    """The Batch API, in Postgres and S3 (`cluster.batches.database_url` and `files_url`)."""

    enabled: bool
    """Whether batches are served."""
    resources: Resources
    """CPU and memory."""
    database_password: SecretKey | None = None
    """Password of Postgres; null: none."""
    object_storage: ObjectStorage | None = None
    """Credentials of S3; null: the ServiceAccount's own, by its annotations."""
