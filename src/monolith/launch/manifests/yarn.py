"""A job for YARN: a service of two components, in the format of its services API.

The fields are those of
https://hadoop.apache.org/docs/stable/hadoop-yarn/hadoop-yarn-site/yarn-service/YarnServiceAPI.html and the constants,
such as ``${COMPONENT_ID}``, those of ``Configurations.html`` in the same folder.
"""

from __future__ import annotations

import math
import secrets
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monolith.cluster import is_scheduled
from monolith.launch.manifests.k8s import MEMORY_SHARE, require_name

if TYPE_CHECKING:
    from monolith.launch.plan import LaunchPlan
    from monolith.launch.role import RoleKind

_LONGEST_NAME = 63
_INDEX = "${COMPONENT_ID}"


@dataclass(frozen=True, kw_only=True)
class YarnService:
    """Settings of a job on YARN in addition to its plan. Containers run anywhere, so it needs a discovery service."""

    plan: LaunchPlan
    name: str
    image: str | None = None
    """Docker image with monolith and the task; None: both are installed on the nodes."""
    queue: str | None = None
    """Queue of the service; None: the default one."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The secret of the job; unused if the options name a file."""

    def __post_init__(self) -> None:
        require_name(self.name, longest=_LONGEST_NAME)
        options = self.plan.options
        if not options.is_set("discovery_type") or is_scheduled(options.discovery_type):
            raise ValueError(
                "--discovery_type: YARN places containers anywhere; set how they find each other: zk --zk_server HOSTS"
                " --deep_insight_name NAME, consul --uuid NAME, or host --discovery_dir with a folder that all reach"
            )

    def document(self) -> dict[str, Any]:
        """Returns the service, as ``yarn app -launch`` reads it."""
        service: dict[str, Any] = {
            "name": self.name,
            "version": "1.0.0",
            "description": f"monolith: {self.plan.task}",
            "components": [self._component("ps"), self._component("worker")],
        }
        return service if self.queue is None else {**service, "queue": self.queue}

    def how_to(self) -> str:
        """Returns instructions for using the manifest."""
        return (
            "put it into a file, and keep that: it holds the secret of this job\n"
            f"start:  yarn app -launch {self.name} job.json\n"
            f"watch:  yarn app -status {self.name}\n"
            "log:    yarn logs -applicationId ID\n"
            f"stop:   yarn app -stop {self.name}\n"
            f"resume: yarn app -start {self.name}, which continues from {self.plan.options.model_dir}\n"
            f"remove: yarn app -destroy {self.name}\n"
            f"A container that ends with another code than 0 is started again under its number, up to"
            f" {self.plan.restarts.limit} times; one that is done stays so.\n"
        )

    def _component(self, kind: RoleKind) -> dict[str, Any]:
        resources = self.plan.resources_of(kind)
        component: dict[str, Any] = {
            "name": kind,
            "number_of_containers": len(self.plan.roles_of(kind)),
            "launch_command": self._command(kind),
            "restart_policy": "ON_FAILURE",
            "resource": {"cpus": math.ceil(resources.cpus), "memory": str(math.ceil(resources.memory_bytes / 2**20))},
            "configuration": self._configuration(),
        }
        return component if self.image is None else {**component, "artifact": {"id": self.image, "type": "DOCKER"}}

    def _configuration(self) -> dict[str, Any]:
        properties = {
            "yarn.service.container-failure.retry.max": str(self.plan.restarts.limit),
            "yarn.service.container-failure.retry-interval-ms": "1000",
        }
        if self.plan.options.is_set("token_file"):
            return {"properties": properties}
        token = {"type": "TEMPLATE", "dest_file": "token", "properties": {"content": self.token}}
        return {"properties": properties, "files": [token]}

    def _command(self, kind: RoleKind) -> str:
        server_bytes = self.plan.resources_of("ps").memory_bytes
        plan = self.plan.with_options(
            {"token_file": "conf/token", "monolith_default_machine_info_mem_limit": int(server_bytes * MEMORY_SHARE)}
        )
        return f"monolith {shlex.join(plan.arguments_of(kind))} --index {_INDEX}"
