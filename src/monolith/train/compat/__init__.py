"""The original's names: flat options, parameters that every task declares, environment variables.

Each name stands once, in a table that says what becomes of it here: which field of our own configs it sets, or why it
is refused. Read `options.py` first, then `derive_config.py`, which applies it. To add a name, add its line and run
``scripts/update-options-page``: ``docs/options.md`` is made from the tables.

May import: everything below `train`, and the configs of `train`; not what runs a task, which sees our own configs only.
"""

from __future__ import annotations

__all__: list[str] = []
