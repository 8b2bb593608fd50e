from monolith.train.config.job_config import JobProgramConfig as JobProgramConfig

from .debugging_info import look_up as look_up
from .debugging_info import read_debugging_info as read_debugging_info
from .distributed_runner import distributed_train as distributed_train
from .local_runner import make_trainer as make_trainer
from .preparation import take_rank as take_rank
