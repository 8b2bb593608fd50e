"""A job as a manifest for a scheduler, with instructions for its use.

Nothing here connects to a cluster: a manifest is a text. Read `k8s` first.
"""

from __future__ import annotations

from monolith.launch.manifests.k8s import K8sJob, yaml_text
from monolith.launch.manifests.yarn import YarnService

__all__ = ["K8sJob", "YarnService", "yaml_text"]
