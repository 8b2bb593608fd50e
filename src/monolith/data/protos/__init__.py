"""Messages of samples and their configs, made from protos/data by scripts/update-protos.

>>> from monolith.data.protos.example_pb2 import Example
>>> Example(label=[1.0]).SerializeToString().hex()
'aa06040000803f'
"""

from monolith.data.protos import (
    example_pb2,
    instance_pb2,
    label_config_pb2,
    line_id_pb2,
    tf_example_pb2,
    transform_config_pb2,
)

__all__ = [
    "example_pb2",
    "instance_pb2",
    "label_config_pb2",
    "line_id_pb2",
    "tf_example_pb2",
    "transform_config_pb2",
]
