from .adapting import ALL_PARTS as ALL_PARTS
from .adapting import Parts as Parts
from .restoring import LoadedCheckpoint as LoadedCheckpoint
from .restoring import Prepared as Prepared
from .restoring import restore_model as restore_model
