from .trainer_config import ReportingConfig as ReportingConfig
from .trainer_config import RestoringConfig as RestoringConfig
from .trainer_config import SavingConfig as SavingConfig
from .trainer_config import TrainerConfig as TrainerConfig
