"""The stages between a source and the trainer; `Dataset` has a method for each of them.

Read `stage` (readings and stages), then `elements` (over one element at a time), `windows` (over many rows), `passes`
(over the data) and `split` (rows by their values). `draws` has random numbers without state. Positions are in
`monolith.data.position`, rows in `monolith.data.rows`.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
