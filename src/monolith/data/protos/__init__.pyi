from . import example_pb2 as example_pb2
from . import instance_pb2 as instance_pb2
from . import label_config_pb2 as label_config_pb2
from . import line_id_pb2 as line_id_pb2
from . import tf_example_pb2 as tf_example_pb2
from . import transform_config_pb2 as transform_config_pb2
