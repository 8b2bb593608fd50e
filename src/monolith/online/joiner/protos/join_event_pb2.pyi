from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinEvent(_message.Message):
    __slots__ = ("request_id", "item_id", "time_ms", "actions", "sample")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    item_id: int
    time_ms: int
    actions: _containers.RepeatedScalarFieldContainer[int]
    sample: bytes
    def __init__(self, request_id: _Optional[bytes] = ..., item_id: _Optional[int] = ..., time_ms: _Optional[int] = ..., actions: _Optional[_Iterable[int]] = ..., sample: _Optional[bytes] = ...) -> None: ...
