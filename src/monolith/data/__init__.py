"""Input of training data: messages, framings of files and streams, parsing to batches, prefetch.

Read `records` (framings, reader and writer), then `columns` and `parser` (from records to a `Batch`), `dataset`,
`sources` and `pipeline` (from files to batches), `operators` for transforms of batches, and `prefetch` for batches made
ahead of their use.
`clicks` generates synthetic traffic. The messages are in `monolith.data.protos`. May import: `tensors`, `dependence`,
`config`, `ids`, `errors`, the core and torch.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"ClickWorld": "SyntheticClicks", "Dense": "DenseColumn"})
