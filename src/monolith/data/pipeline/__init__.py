"""The steps between a source and the trainer, one file each; `Dataset` has a method for each of them.

Read `stage`, then any other. What they share: `draws` (random numbers without state). Positions are in
`monolith.data.position`, rows in `monolith.data.rows`.
"""

__all__: list[str] = []
