from . import flags as flags
from .instantiable_params import InstantiableParams as InstantiableParams
from .params import Params as Params
from .registry import find_task as find_task
