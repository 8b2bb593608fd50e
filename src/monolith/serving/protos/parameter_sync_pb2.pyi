from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeltaEmbeddingHashTable(_message.Message):
    __slots__ = ("unique_id", "dim_size", "fids", "embeddings")
    UNIQUE_ID_FIELD_NUMBER: _ClassVar[int]
    DIM_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIDS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    unique_id: str
    dim_size: int
    fids: _containers.RepeatedScalarFieldContainer[int]
    embeddings: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, unique_id: _Optional[str] = ..., dim_size: _Optional[int] = ..., fids: _Optional[_Iterable[int]] = ..., embeddings: _Optional[_Iterable[float]] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("model_name", "signature_name", "delta_hash_tables", "timeout_in_ms", "delta_multi_hash_tables")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_NAME_FIELD_NUMBER: _ClassVar[int]
    DELTA_HASH_TABLES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_IN_MS_FIELD_NUMBER: _ClassVar[int]
    DELTA_MULTI_HASH_TABLES_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    signature_name: str
    delta_hash_tables: _containers.RepeatedCompositeFieldContainer[DeltaEmbeddingHashTable]
    timeout_in_ms: int
    delta_multi_hash_tables: _containers.RepeatedCompositeFieldContainer[DeltaEmbeddingHashTable]
    def __init__(self, model_name: _Optional[str] = ..., signature_name: _Optional[str] = ..., delta_hash_tables: _Optional[_Iterable[_Union[DeltaEmbeddingHashTable, _Mapping]]] = ..., timeout_in_ms: _Optional[int] = ..., delta_multi_hash_tables: _Optional[_Iterable[_Union[DeltaEmbeddingHashTable, _Mapping]]] = ...) -> None: ...

class PushResponse(_message.Message):
    __slots__ = ("status_code", "error_message", "target", "update_num")
    STATUS_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NUM_FIELD_NUMBER: _ClassVar[int]
    status_code: int
    error_message: str
    target: str
    update_num: int
    def __init__(self, status_code: _Optional[int] = ..., error_message: _Optional[str] = ..., target: _Optional[str] = ..., update_num: _Optional[int] = ...) -> None: ...

class PushResult(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[PushResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[PushResponse, _Mapping]]] = ...) -> None: ...

class ClientConfig(_message.Message):
    __slots__ = ("model_name", "signature_name", "targets", "timeout_in_ms", "targets_extra_info")
    class TargetExtraInfo(_message.Message):
        __slots__ = ("idc", "cluster", "replica_id")
        IDC_FIELD_NUMBER: _ClassVar[int]
        CLUSTER_FIELD_NUMBER: _ClassVar[int]
        REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
        idc: str
        cluster: str
        replica_id: int
        def __init__(self, idc: _Optional[str] = ..., cluster: _Optional[str] = ..., replica_id: _Optional[int] = ...) -> None: ...
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_IN_MS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_EXTRA_INFO_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    signature_name: str
    targets: _containers.RepeatedScalarFieldContainer[str]
    timeout_in_ms: int
    targets_extra_info: _containers.RepeatedCompositeFieldContainer[ClientConfig.TargetExtraInfo]
    def __init__(self, model_name: _Optional[str] = ..., signature_name: _Optional[str] = ..., targets: _Optional[_Iterable[str]] = ..., timeout_in_ms: _Optional[int] = ..., targets_extra_info: _Optional[_Iterable[_Union[ClientConfig.TargetExtraInfo, _Mapping]]] = ...) -> None: ...
