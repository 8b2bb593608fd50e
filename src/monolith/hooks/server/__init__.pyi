from monolith.rpc import ClientCredentials as ClientCredentials
from monolith.rpc import ServerCredentials as ServerCredentials

from .client import ControllerClient as ControllerClient
from .client import get_stub_from_model_dir as get_stub_from_model_dir
from .server_hook import ServerHook as ServerHook
from .step_gate import StepGate as StepGate
