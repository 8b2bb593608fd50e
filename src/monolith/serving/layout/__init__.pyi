from ._columns import LooseColumn as LooseColumn
from .layout import LaidOut as LaidOut
from .layout import Layout as Layout
from .layout import SampleForm as SampleForm
from .layout import slice_name as slice_name
from .trained import TrainedLayout as TrainedLayout
