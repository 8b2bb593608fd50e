from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SlidingHashFilterMetaDump(_message.Message):
    __slots__ = ("split_num", "max_forward_step", "max_backward_step", "max_step", "head", "head_increment", "failure_count")
    SPLIT_NUM_FIELD_NUMBER: _ClassVar[int]
    MAX_FORWARD_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_BACKWARD_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    HEAD_INCREMENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    split_num: int
    max_forward_step: int
    max_backward_step: int
    max_step: int
    head: int
    head_increment: int
    failure_count: int
    def __init__(self, split_num: _Optional[int] = ..., max_forward_step: _Optional[int] = ..., max_backward_step: _Optional[int] = ..., max_step: _Optional[int] = ..., head: _Optional[int] = ..., head_increment: _Optional[int] = ..., failure_count: _Optional[int] = ...) -> None: ...

class HashFilterSplitMetaDump(_message.Message):
    __slots__ = ("failure_count", "total_size", "num_elements", "fill_rate", "sliding_hash_filter_meta")
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    FILL_RATE_FIELD_NUMBER: _ClassVar[int]
    SLIDING_HASH_FILTER_META_FIELD_NUMBER: _ClassVar[int]
    failure_count: int
    total_size: int
    num_elements: int
    fill_rate: float
    sliding_hash_filter_meta: SlidingHashFilterMetaDump
    def __init__(self, failure_count: _Optional[int] = ..., total_size: _Optional[int] = ..., num_elements: _Optional[int] = ..., fill_rate: _Optional[float] = ..., sliding_hash_filter_meta: _Optional[_Union[SlidingHashFilterMetaDump, _Mapping]] = ...) -> None: ...

class HashFilterSplitDataDump(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[_Iterable[int]] = ...) -> None: ...
