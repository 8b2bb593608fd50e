"""A job for Kubernetes: an indexed Job of servers and one of workers, which find each other by name."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.launch.restarts import INTERRUPTED, TRY_AGAIN

if TYPE_CHECKING:
    from monolith.launch.plan import LaunchPlan
    from monolith.launch.role import RoleKind

__all__ = ["K8sJob"]

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 40
"""The names of pods, which have more behind it, end at 63."""
_TOKEN_DIR = "/var/run/secrets/monolith"  # noqa: S105 - a folder
_INDEX = "$(JOB_COMPLETION_INDEX)"
"""Put in by Kubernetes, which gives this variable to every pod of an indexed Job."""
_SIGNALS = (134, 135, 136, 137, 139, 143)
"""Exit codes of containers that a signal ended: by the kernel, for want of memory, by a crash."""
_MEMORY_SHARE = 0.9
"""Of a server's memory, above which training waits instead of the server being ended."""


@dataclass(frozen=True, kw_only=True)
class K8sJob:
    """What a job on Kubernetes is beyond its plan.

    Jobs, not StatefulSets: both kinds of process end with the training, and a StatefulSet starts again what has ended
    well. Pods of an indexed Job have stable names, too, so their addresses are known beforehand, as ``TF_CONFIG``.
    """

    plan: LaunchPlan
    name: str
    """Of all its objects."""
    image: str
    """With monolith and the task."""
    namespace: str = "default"
    volume_claim: str | None = None
    """Claim of the storage that is mounted at the model directory; needed unless that is the URL of a store."""
    port: int = 7000
    """On which every process listens."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The secret of the job."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise ValueError(
                f"--name: must be small letters, digits and -, begin with a letter and have at most {_LONGEST_NAME} of"
                f" them, got {self.name!r}"
            )
        if not self.image:
            raise ValueError("--image: say which image has monolith and the task, such as registry/ranker:7")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"--port: must be from 1 to 65535, got {self.port}")
        model_dir = self.plan.options.model_dir
        if "://" not in model_dir and self.volume_claim is None:
            raise ValueError(
                f"--volume_claim: {model_dir} is a folder that all pods must reach; give the claim of the volume that"
                " is mounted there (ReadWriteMany), or a --model_dir such as s3://bucket/ranker"
            )

    def documents(self) -> list[dict[str, Any]]:
        """The objects of the job, in the order in which they are made."""
        return [self._secret(), self._service(), self._job("ps"), self._job("worker")]

    def how_to(self) -> str:
        """What to do with the manifest."""
        here, workers = f"kubectl -n {self.namespace}", f"job/{self.name}-worker"
        return (
            "put it into a file, and keep that: it holds the secret of this job\n"
            f"start:      {here} apply -f job.yaml\n"
            f"watch:      {here} get pods -l monolith/job={self.name} -w\n"
            f"log:        {here} logs -f {workers} --all-pods --prefix\n"
            f"wait:       {here} wait --for=condition=complete {workers} --timeout=-1s\n"
            f"stop, save: {here} delete {workers} --cascade=foreground && {here} delete -f job.yaml\n"
            f"go on:      the same manifest again; it continues from {self.plan.options.model_dir}\n"
            "A pod that dies is replaced under its number. An error of the task fails its Job; then look at the log,"
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
                "publishNotReadyAddresses": True,  # they wait for each other
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
        """Which ends of a pod are nobody's fault, and which end the job."""
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
            "restartPolicy": "Never",  # the Job replaces pods, and looks at their exit codes
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
        found = {
            "name": "monolith",
            "image": self.image,
            "command": ["monolith"],
            "args": self._arguments(kind),
            "ports": [{"name": "monolith", "containerPort": self.port}],
            "resources": {"requests": {"cpu": f"{resources.cpus:g}", "memory": memory}, "limits": {"memory": memory}},
            "volumeMounts": mounts,
        }
        return found | (self._probes() if self._has_fixed_ports else {})

    def _probes(self) -> dict[str, Any]:
        """A process listens before it restores, so that a long start is not taken for a dead one."""
        look = {"tcpSocket": {"port": "monolith"}, "periodSeconds": 10}
        return {
            "startupProbe": {**look, "failureThreshold": 60},
            "readinessProbe": look,
            "livenessProbe": {**look, "failureThreshold": 6, "timeoutSeconds": 5},
        }

    @property
    def _has_fixed_ports(self) -> bool:
        """Whether addresses are known beforehand; with a discovery service of the user's, ports are free ones."""
        return not self.plan.options.is_set("discovery_type")

    def _arguments(self, kind: RoleKind) -> list[str]:
        brought: dict[str, Any] = {"host": "0.0.0.0", "token_file": f"{_TOKEN_DIR}/token"}  # noqa: S104 - in a pod
        if self._has_fixed_ports:
            brought["discovery_type"] = ServiceDiscoveryType.PRIMUS
        server_bytes = self.plan.resources_of("ps").memory_bytes
        brought["monolith_default_machine_info_mem_limit"] = int(server_bytes * _MEMORY_SHARE)
        plan = self.plan.with_options(brought)
        # What looks like a variable of Kubernetes is not one.
        said = [word.replace("$(", "$$(") for word in plan.arguments_of(kind)]
        return [*said, "--tf_config", self._tf_config(kind)] if self._has_fixed_ports else [*said, "--index", _INDEX]

    def _tf_config(self, kind: RoleKind) -> str:
        kinds: tuple[RoleKind, ...] = ("ps", "worker")
        cluster = {each: [self._address(each, role.index) for role in self.plan.roles_of(each)] for each in kinds}
        return f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "{kind}", "index": {_INDEX}}}}}'

    def _address(self, kind: RoleKind, index: int) -> str:
        return f"{self.name}-{kind}-{index}.{self.name}.{self.namespace}.svc:{self.port}"


def _exit_codes(operator: str, values: list[int]) -> dict[str, Any]:
    return {"containerName": "monolith", "operator": operator, "values": values}
