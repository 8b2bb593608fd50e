"""The controller service: an operator pauses, resumes and saves a running training, and queries its progress.

`ServerHook` serves it from the chief's session, `ControllerClient` and ``monolith control`` call it. Needs grpcio,
which is imported when a server or client is created. Read `service` first.
"""

from __future__ import annotations

from monolith.hooks.server.client import ControllerClient, get_stub_from_model_dir
from monolith.hooks.server.server_hook import ServerHook
from monolith.hooks.server.step_gate import StepGate
from monolith.rpc.credentials import ClientCredentials, ServerCredentials

__all__ = [
    "ClientCredentials",
    "ControllerClient",
    "ServerCredentials",
    "ServerHook",
    "StepGate",
    "get_stub_from_model_dir",
]
