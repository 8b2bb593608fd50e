"""torch's operations on lists of tensors: one call for all parameters of an optimizer.

torch's own optimizers are built on them, but their names begin with an underscore; only this module uses
those names. Lists of one call have equal lengths, and their tensors one device and one dtype. A name that ends in an
underscore changes its first list in place.
"""

from __future__ import annotations

from torch import _foreach_add as add
from torch import _foreach_add_ as add_
from torch import _foreach_addcdiv_ as addcdiv_
from torch import _foreach_addcmul_ as addcmul_
from torch import _foreach_copy_ as copy_
from torch import _foreach_lerp_ as lerp_
from torch import _foreach_mul_ as mul_
from torch import _foreach_sqrt as sqrt
from torch import _foreach_sqrt_ as sqrt_
from torch import _foreach_sub_ as sub_

__all__ = ["add", "add_", "addcdiv_", "addcmul_", "copy_", "lerp_", "mul_", "sqrt", "sqrt_", "sub_"]
