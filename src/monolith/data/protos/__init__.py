"""Messages of samples and their configs, made from protos/data by scripts/update-protos.

>>> from monolith.data.protos.example_pb2 import Example
>>> Example(label=[1.0]).SerializeToString().hex()
'aa06040000803f'
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
