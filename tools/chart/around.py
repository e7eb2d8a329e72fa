"""Values of the Helm chart: who may reach what, where pods run, what watches them."""

from typing import Annotated, Literal

from pydantic import Field

from foretell.tools.chart.base import NameOrNone, Objects, SecretKey, Values


class Secrets(Values):
    """Secrets, by reference."""

    traffic: SecretKey
    """The secret that schedulers, predictors, tagger and batch service share. It is needed."""
    api_keys: SecretKey | None = None
    """Keys of clients, one a line, or YAML that names callers; null: anyone may call."""
    engine_api_key: SecretKey | None = None
    """The key that engines demand; null: none."""
    hugging_face_token: SecretKey | None = None
    """Token for models that the hub gives to some only; null: none."""
    provisioner_api_key: SecretKey | None = None
    """A key of an admin, with which the provisioner asks schedulers; null: none."""


class TrafficTls(Values):
    """TLS between services."""

    secret_name: NameOrNone
    """Secret of the keys tls.crt, tls.key and ca.crt, whose certificate holds for the names of all
    Services and pods; empty: no TLS."""


class Spread(Values):
    """How pods of a kind are spread."""

    topology_keys: list[str]
    """Labels of nodes over which they are spread."""
    max_skew: int = Field(ge=1)
    """Largest difference of their number."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"]
    """Whether they start nevertheless."""


class PriorityClasses(Values):
    """Priority classes, which belong to the whole cluster."""

    create: bool
    """Whether they are made."""
    front: int = Field(le=1000000000)
    """Value for schedulers and what they need."""
    engine: int = Field(le=1000000000)
    """Value for engines."""


class NetworkPolicies(Values):
    """Who may speak to pods from outside, as `from` of a NetworkPolicy."""

    enabled: bool
    """Whether there are policies: engines, predictors, tagger and picker are then for those only
    who need them."""
    clients: Objects
    """Who may speak to schedulers; [{}] is not allowed, an empty podSelector and namespaceSelector
    is every pod."""
    gateways: Objects
    """Who asks the picker, and carries requests to engines."""
    monitoring: Objects
    """Who scrapes."""
    keda: Objects
    """Who asks the external scaler."""


class Ingress(Values):
    """An Ingress for the schedulers."""

    enabled: bool
    """Whether there is one."""
    class_name: NameOrNone
    """Its class; empty: the default."""
    annotations: dict[str, str]
    """Its annotations: controllers end long answers early unless told otherwise."""
    hosts: list[str]
    """Names of the endpoint."""
    paths: list[Annotated[str, Field(pattern="^/")]]
    """Beginnings of paths; metrics and health are better kept inside."""
    tls_secret_name: NameOrNone
    """Secret of the certificate; empty: no TLS."""


class Gateway(Values):
    """Gateway API."""

    parent_refs: Objects
    """Gateways of the HTTPRoute; empty: no route."""
    hostnames: list[str]
    """Names of the endpoint."""
    paths: list[Annotated[str, Field(pattern="^/")]]
    """Beginnings of paths."""
    inference_pool: bool
    """Whether the gateway carries requests to engines itself, and asks schedulers which
    (InferencePool); otherwise they pass through schedulers."""
    picker_tls_secret_name: NameOrNone
    """Secret of the certificate that the picker shows to gateways, which want TLS but look at no
    name; empty: that of `trafficTls`, or no TLS."""


class PodMonitors(Values):
    """What the Prometheus operator scrapes."""

    enabled: bool
    """Whether there are PodMonitors."""
    interval: str = Field(pattern="^[0-9]+(ms|s|m)$")
    """Time between two scrapes."""


class Rules(Values):
    """Alerts."""

    enabled: bool
    """Whether there is a PrometheusRule."""
    runbook_url: str = Field(pattern="^(https?://.+)?$")
    """Where the runbook is."""


class Dashboards(Values):
    """Dashboards for Grafana."""

    enabled: bool
    """Whether there are ConfigMaps of them."""
    labels: dict[str, str]
    """Labels by which Grafana's sidecar finds them."""
    annotations: dict[str, str]
    """Annotations, such as that of a folder."""


class Monitoring(Values):
    """Metrics, alerts and dashboards."""

    labels: dict[str, str]
    """Labels by which a Prometheus selects monitors and rules, such as release: prometheus."""
    pod_monitors: PodMonitors
    """Who is scraped."""
    rules: Rules
    """Alerts."""
    dashboards: Dashboards
    """Dashboards."""
