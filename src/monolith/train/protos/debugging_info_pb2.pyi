from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cluster(_message.Message):
    __slots__ = ("chief_addr", "ps_addrs")
    CHIEF_ADDR_FIELD_NUMBER: _ClassVar[int]
    PS_ADDRS_FIELD_NUMBER: _ClassVar[int]
    chief_addr: str
    ps_addrs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chief_addr: _Optional[str] = ..., ps_addrs: _Optional[_Iterable[str]] = ...) -> None: ...

class FeatureNameConfig(_message.Message):
    __slots__ = ("feature_name", "config_str")
    FEATURE_NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_STR_FIELD_NUMBER: _ClassVar[int]
    feature_name: str
    config_str: str
    def __init__(self, feature_name: _Optional[str] = ..., config_str: _Optional[str] = ...) -> None: ...

class DebuggingInfo(_message.Message):
    __slots__ = ("cluster", "num_workers", "feature_name_configs")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_NAME_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    cluster: Cluster
    num_workers: int
    feature_name_configs: _containers.RepeatedCompositeFieldContainer[FeatureNameConfig]
    def __init__(self, cluster: _Optional[_Union[Cluster, _Mapping]] = ..., num_workers: _Optional[int] = ..., feature_name_configs: _Optional[_Iterable[_Union[FeatureNameConfig, _Mapping]]] = ...) -> None: ...
