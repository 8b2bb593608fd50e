from .conversions import MODES as MODES
from .effects import effects_of as effects_of
from .effects import job_of as job_of
from .flat_config import Origin as Origin
from .options import DistributedCpuTrainingConfig as DistributedCpuTrainingConfig
from .options import RunnerConfig as RunnerConfig
from .refusal import require_effective as require_effective
from .task_parameters import override_params as override_params
