from .models import ReplayModels as ReplayModels
from .replay import Difference as Difference
from .replay import SkewReport as SkewReport
from .replay import VersionSkew as VersionSkew
from .replay import measure_skew as measure_skew
