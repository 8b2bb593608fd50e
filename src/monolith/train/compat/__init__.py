"""Names of ByteDance Monolith: flat options, parameters that every task declares, environment variables.

Each name appears once, in a table that maps it to the field of our own configs that it sets, or to the reason why it is
refused. Read `options.py` first, then `derive_config.py`, which applies it. To add a name, add its line and run
``scripts/update-options-page``, which generates ``docs/options.md`` from the tables.

May import: everything below `train`, and the configs of `train`; not the code that runs a task, which uses only our own
configs.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
