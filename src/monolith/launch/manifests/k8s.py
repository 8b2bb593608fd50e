"""A job for Kubernetes: an indexed Job of servers and one of workers, which find each other by name; and its YAML."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.launch.role import INTERRUPTED, TRY_AGAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.launch.plan import LaunchPlan
    from monolith.launch.role import RoleKind

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 40
"""Names of pods add a suffix, and are limited to 63 characters."""
_TOKEN_DIR = "/var/run/secrets/monolith"  # noqa: S105 - a folder
_INDEX = "$(JOB_COMPLETION_INDEX)"
"""Substituted by Kubernetes, which sets this variable in every pod of an indexed Job."""
_SIGNALS = (134, 135, 136, 137, 139, 143)
"""Exit codes of containers that a signal ended: by the kernel, out of memory, or a crash."""
MEMORY_SHARE = 0.9
"""Share of a server's memory above which training pauses, before the server is killed."""


def require_name(name: str, *, longest: int) -> None:
    """Refuses a name that a scheduler could not give to the objects of a job."""
    if not _NAME.fullmatch(name) or len(name) > longest:
        raise ValueError(
            f"--name: must be small letters, digits and -, begin with a letter and have at most {longest} of them, got"
            f" {name!r}"
        )


@dataclass(frozen=True, kw_only=True)
class K8sJob:
    """Settings of a job on Kubernetes in addition to its plan.

    Jobs, not StatefulSets: both kinds of process end with the training, and a StatefulSet restarts processes that ended
    successfully. Pods of an indexed Job have stable names, too, so their addresses are available in advance, as
    ``TF_CONFIG``.
    """

    plan: LaunchPlan
    name: str
    """Name of all its objects."""
    image: str
    """Image with monolith and the task."""
    namespace: str = "default"
    volume_claim: str | None = None
    """Claim of the storage that is mounted at the model directory; required unless that is the URL of a store."""
    port: int = 7000
    """Port on which every process listens."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The secret of the job."""

    def __post_init__(self) -> None:
        require_name(self.name, longest=_LONGEST_NAME)
        if not self.image:
            raise ValueError("--image: name an image that has monolith and the task, such as registry/ranker:7")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"--port: must be from 1 to 65535, got {self.port}")
        model_dir = self.plan.options.model_dir
        if "://" not in model_dir and self.volume_claim is None:
            raise ValueError(
                f"--volume_claim: {model_dir} is a folder that all pods must reach; give the claim of the volume that"
                " is mounted there (ReadWriteMany), or a --model_dir such as s3://bucket/ranker"
            )

    def documents(self) -> list[dict[str, Any]]:
        """Returns the objects of the job, in the order of their creation."""
        return [self._secret(), self._service(), self._job("ps"), self._job("worker")]

    def how_to(self) -> str:
        """Returns instructions for using the manifest."""
        here, workers = f"kubectl -n {self.namespace}", f"job/{self.name}-worker"
        return (
            "put it into a file, and keep that: it holds the secret of this job\n"
            f"start:      {here} apply -f job.yaml\n"
            f"watch:      {here} get pods -l monolith/job={self.name} -w\n"
            f"log:        {here} logs -f {workers} --all-pods --prefix\n"
            f"wait:       {here} wait --for=condition=complete {workers} --timeout=-1s\n"
            f"stop, save: {here} delete {workers} --cascade=foreground && {here} delete -f job.yaml\n"
            f"resume:     the same manifest again; it continues from {self.plan.options.model_dir}\n"
            "A pod that dies is replaced under its number. An error of the task fails its Job; then check the log,"
            f" and remove the rest: {here} delete -f job.yaml\n"
        )

    def _metadata(self, suffix: str = "", **labels: str) -> dict[str, Any]:
        names = {"monolith/job": self.name, **labels}
        return {"name": f"{self.name}{suffix}", "namespace": self.namespace, "labels": names}

    def _secret(self) -> dict[str, Any]:
        data = {"token": self.token}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": self._metadata("-token"), "stringData": data}

    def _service(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(),
            "spec": {
                "clusterIP": "None",  # a name for every pod, instead of one for all
                "publishNotReadyAddresses": True,  # pods wait for each other before they are ready
                "selector": {"monolith/job": self.name},
                "ports": [{"name": "monolith", "port": self.port}],
            },
        }

    def _job(self, kind: RoleKind) -> dict[str, Any]:
        number = len(self.plan.roles_of(kind))
        metadata = self._metadata(f"-{kind}", **{"monolith/role": kind})
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": number,
                "parallelism": number,
                "backoffLimit": self.plan.restarts.limit * number,
                "podFailurePolicy": {"rules": self._failure_rules()},
                "template": {"metadata": {"labels": metadata["labels"]}, "spec": self._pod(kind)},
            },
        }

    @staticmethod
    def _failure_rules() -> list[dict[str, Any]]:
        """Returns the rules for exit codes: which ones restart a pod, and which ones end the job."""
        again = sorted((TRY_AGAIN, INTERRUPTED))
        known = sorted((*again, *_SIGNALS))
        return [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "Ignore", "onExitCodes": _exit_codes("In", again)},
            {"action": "FailJob", "onExitCodes": _exit_codes("NotIn", known)},
        ]

    def _pod(self, kind: RoleKind) -> dict[str, Any]:
        volumes: list[dict[str, Any]] = [{"name": "token", "secret": {"secretName": f"{self.name}-token"}}]
        if self.volume_claim is not None:
            volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": self.volume_claim}})
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"monolith/job": self.name, "monolith/role": kind}},
        }
        return {
            "subdomain": self.name,
            "restartPolicy": "Never",  # the Job replaces pods, according to their exit codes
            "terminationGracePeriodSeconds": 300,
            "automountServiceAccountToken": False,
            "topologySpreadConstraints": [spread],
            "containers": [self._container(kind)],
            "volumes": volumes,
        }

    def _container(self, kind: RoleKind) -> dict[str, Any]:
        resources = self.plan.resources_of(kind)
        mounts = [{"name": "token", "mountPath": _TOKEN_DIR, "readOnly": True}]
        if self.volume_claim is not None:
            mounts.append({"name": "model", "mountPath": self.plan.options.model_dir})
        memory = str(resources.memory_bytes)
        container = {
            "name": "monolith",
            "image": self.image,
            "command": ["monolith"],
            "args": self._arguments(kind),
            "ports": [{"name": "monolith", "containerPort": self.port}],
            "resources": {"requests": {"cpu": f"{resources.cpus:g}", "memory": memory}, "limits": {"memory": memory}},
            "volumeMounts": mounts,
        }
        return container | (self._probes() if self._has_fixed_ports else {})

    def _probes(self) -> dict[str, Any]:
        """Returns the probes. A process listens before it restores, so that a long start does not look dead."""
        look = {"tcpSocket": {"port": "monolith"}, "periodSeconds": 10}
        return {
            "startupProbe": {**look, "failureThreshold": 60},
            "readinessProbe": look,
            "livenessProbe": {**look, "failureThreshold": 6, "timeoutSeconds": 5},
        }

    @property
    def _has_fixed_ports(self) -> bool:
        """Whether addresses are fixed in advance; with a discovery service of the user's, ports are free ones."""
        return not self.plan.options.is_set("discovery_type")

    def _arguments(self, kind: RoleKind) -> list[str]:
        brought: dict[str, Any] = {"host": "0.0.0.0", "token_file": f"{_TOKEN_DIR}/token"}  # noqa: S104 - in a pod
        if self._has_fixed_ports:
            brought["discovery_type"] = ServiceDiscoveryType.PRIMUS
        server_bytes = self.plan.resources_of("ps").memory_bytes
        brought["monolith_default_machine_info_mem_limit"] = int(server_bytes * MEMORY_SHARE)
        plan = self.plan.with_options(brought)
        # Escape text that looks like a variable of Kubernetes.
        said = [word.replace("$(", "$$(") for word in plan.arguments_of(kind)]
        return [*said, "--tf_config", self._tf_config(kind)] if self._has_fixed_ports else [*said, "--index", _INDEX]

    def _tf_config(self, kind: RoleKind) -> str:
        kinds: tuple[RoleKind, ...] = ("ps", "worker")
        cluster = {
            role_kind: [self._address(role_kind, role.index) for role in self.plan.roles_of(role_kind)]
            for role_kind in kinds
        }
        return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{kind}", "index": {_INDEX}}}}}'

    def _address(self, kind: RoleKind, index: int) -> str:
        return f"{self.name}-{kind}-{index}.{self.name}.{self.namespace}.svc:{self.port}"


def _exit_codes(operator: str, values: list[int]) -> dict[str, Any]:
    return {"containerName": "monolith", "operator": operator, "values": values}


_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NOT_TEXTS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""Words that some parsers do not read as text, in any case."""


def yaml_text(documents: Iterable[dict[str, Any]]) -> str:
    """Renders documents of maps, lists, texts and numbers.

    >>> print(yaml_text([{"kind": "Job", "spec": {"on": ["yes", 3]}}]), end="")
    kind: Job
    spec:
      "on":
        - "yes"
        - 3
    """
    return "---\n".join("".join(f"{line}\n" for line in _lines(document)) for document in documents)


def _lines(value: Any) -> Iterator[str]:
    """Yields the lines of a non-empty map or list."""
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for name, item in items:
        head = "-" if name is None else f"{_scalar(name)}:"
        if not isinstance(item, dict | list) or not item:
            yield f"{head} {_scalar(item)}"
        elif name is None:
            first, *others = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        else:
            yield head
            yield from (f"  {line}" for line in _lines(item))


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXTS:
        return value
    return json.dumps(value)  # JSON is YAML
