from .coordinator_service import CoordinatorService as CoordinatorService
from .job import JobClient as JobClient
from .queues import JobQueues as JobQueues
from .saved_job import OF_ONE_PROCESS as OF_ONE_PROCESS
from .state import JobState as JobState
from .state import LostUpdates as LostUpdates
