from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Failure(_message.Message):
    __slots__ = ("kind", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("index", "num_ps", "version", "wire_version", "life", "frame_port", "frames_inside", "stores", "stands_by", "was_recovered", "frames_tls", "failure")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_PS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    FRAME_PORT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_INSIDE_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    STANDS_BY_FIELD_NUMBER: _ClassVar[int]
    WAS_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_TLS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    index: int
    num_ps: int
    version: str
    wire_version: int
    life: int
    frame_port: int
    frames_inside: bool
    stores: _containers.RepeatedScalarFieldContainer[str]
    stands_by: bool
    was_recovered: bool
    frames_tls: bool
    failure: Failure
    def __init__(self, index: _Optional[int] = ..., num_ps: _Optional[int] = ..., version: _Optional[str] = ..., wire_version: _Optional[int] = ..., life: _Optional[int] = ..., frame_port: _Optional[int] = ..., frames_inside: _Optional[bool] = ..., stores: _Optional[_Iterable[str]] = ..., stands_by: _Optional[bool] = ..., was_recovered: _Optional[bool] = ..., frames_tls: _Optional[bool] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class TakePlaceRequest(_message.Message):
    __slots__ = ("index", "num_ps")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_PS_FIELD_NUMBER: _ClassVar[int]
    index: int
    num_ps: int
    def __init__(self, index: _Optional[int] = ..., num_ps: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("drain_seconds",)
    DRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    drain_seconds: float
    def __init__(self, drain_seconds: _Optional[float] = ...) -> None: ...

class StayRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: int
    def __init__(self, client: _Optional[int] = ...) -> None: ...

class StayResponse(_message.Message):
    __slots__ = ("life", "failure")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    life: int
    failure: Failure
    def __init__(self, life: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("generation", "life")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    life: int
    def __init__(self, generation: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class ConfigureRequest(_message.Message):
    __slots__ = ("store", "agreement", "life", "adopt")
    STORE_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    store: str
    agreement: bytes
    life: Life
    adopt: bool
    def __init__(self, store: _Optional[str] = ..., agreement: _Optional[bytes] = ..., life: _Optional[_Union[Life, _Mapping]] = ..., adopt: _Optional[bool] = ...) -> None: ...

class ConfigureResponse(_message.Message):
    __slots__ = ("is_new", "life", "failure")
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    is_new: bool
    life: Life
    failure: Failure
    def __init__(self, is_new: _Optional[bool] = ..., life: _Optional[_Union[Life, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ("store",)
    STORE_FIELD_NUMBER: _ClassVar[int]
    store: str
    def __init__(self, store: _Optional[str] = ...) -> None: ...

class OwnersRequest(_message.Message):
    __slots__ = ("owners",)
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, owners: _Optional[_Iterable[str]] = ...) -> None: ...

class OwnersResponse(_message.Message):
    __slots__ = ("resumed", "owners", "failure")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    resumed: _containers.RepeatedScalarFieldContainer[str]
    owners: _containers.RepeatedScalarFieldContainer[str]
    failure: Failure
    def __init__(self, resumed: _Optional[_Iterable[str]] = ..., owners: _Optional[_Iterable[str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class TableNumbers(_message.Message):
    __slots__ = ("numbers",)
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.ScalarMap[str, float]
    def __init__(self, numbers: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SituationResponse(_message.Message):
    __slots__ = ("epoch", "life", "newest_times", "rows", "memory_bytes", "applied", "tables", "failure")
    class AppliedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class TablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TableNumbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TableNumbers, _Mapping]] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIMES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    life: Life
    newest_times: _containers.RepeatedScalarFieldContainer[int]
    rows: int
    memory_bytes: int
    applied: _containers.ScalarMap[int, int]
    tables: _containers.MessageMap[str, TableNumbers]
    failure: Failure
    def __init__(self, epoch: _Optional[int] = ..., life: _Optional[_Union[Life, _Mapping]] = ..., newest_times: _Optional[_Iterable[int]] = ..., rows: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., applied: _Optional[_Mapping[int, int]] = ..., tables: _Optional[_Mapping[str, TableNumbers]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class MomentResponse(_message.Message):
    __slots__ = ("epoch", "newest_times", "life", "failure")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIMES_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    newest_times: _containers.RepeatedScalarFieldContainer[int]
    life: Life
    failure: Failure
    def __init__(self, epoch: _Optional[int] = ..., newest_times: _Optional[_Iterable[int]] = ..., life: _Optional[_Union[Life, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Stamp(_message.Message):
    __slots__ = ("worker", "seq", "position", "event_time_ms")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    seq: int
    position: bytes
    event_time_ms: int
    def __init__(self, worker: _Optional[int] = ..., seq: _Optional[int] = ..., position: _Optional[bytes] = ..., event_time_ms: _Optional[int] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("generation", "life", "epoch")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    life: int
    epoch: int
    def __init__(self, generation: _Optional[int] = ..., life: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Buckets(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Clock(_message.Message):
    __slots__ = ("seqs",)
    class SeqsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    SEQS_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.ScalarMap[int, int]
    def __init__(self, seqs: _Optional[_Mapping[int, int]] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("client", "seconds")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    client: int
    seconds: float
    def __init__(self, client: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class LevelRequest(_message.Message):
    __slots__ = ("client", "clocks", "wait_seconds")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Clock
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Clock, _Mapping]] = ...) -> None: ...
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    client: int
    clocks: _containers.MessageMap[str, Clock]
    wait_seconds: float
    def __init__(self, client: _Optional[int] = ..., clocks: _Optional[_Mapping[str, Clock]] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("clocks", "failure")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Clock
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Clock, _Mapping]] = ...) -> None: ...
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    clocks: _containers.MessageMap[str, Clock]
    failure: Failure
    def __init__(self, clocks: _Optional[_Mapping[str, Clock]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: int
    def __init__(self, client: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("was_held", "failure")
    WAS_HELD_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    was_held: bool
    failure: Failure
    def __init__(self, was_held: _Optional[bool] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class CutAtRequest(_message.Message):
    __slots__ = ("store", "client", "epoch", "newest_times")
    STORE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIMES_FIELD_NUMBER: _ClassVar[int]
    store: str
    client: int
    epoch: int
    newest_times: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, store: _Optional[str] = ..., client: _Optional[int] = ..., epoch: _Optional[int] = ..., newest_times: _Optional[_Iterable[int]] = ...) -> None: ...

class CutAtResponse(_message.Message):
    __slots__ = ("number", "epoch", "stamps", "rows", "failure")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    rows: _containers.RepeatedScalarFieldContainer[int]
    failure: Failure
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ..., rows: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class CutRequest(_message.Message):
    __slots__ = ("store", "number")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class CutBlocksRequest(_message.Message):
    __slots__ = ("store", "number", "buckets", "state", "since")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    buckets: Buckets
    state: bool
    since: Mark
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., buckets: _Optional[_Union[Buckets, _Mapping]] = ..., state: _Optional[bool] = ..., since: _Optional[_Union[Mark, _Mapping]] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("parts", "is_continued", "failure")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    IS_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    is_continued: bool
    failure: Failure
    def __init__(self, parts: _Optional[_Iterable[bytes]] = ..., is_continued: _Optional[bool] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class WriteCutRequest(_message.Message):
    __slots__ = ("store", "number", "folder", "snapshot_id", "state", "drop_expired", "num_files", "rate_bytes_per_second", "threads")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DROP_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    NUM_FILES_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    folder: str
    snapshot_id: int
    state: bool
    drop_expired: bool
    num_files: int
    rate_bytes_per_second: float
    threads: int
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., folder: _Optional[str] = ..., snapshot_id: _Optional[int] = ..., state: _Optional[bool] = ..., drop_expired: _Optional[bool] = ..., num_files: _Optional[int] = ..., rate_bytes_per_second: _Optional[float] = ..., threads: _Optional[int] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "begin", "end", "bytes", "index_crc32c", "rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_CRC32C_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    begin: int
    end: int
    bytes: int
    index_crc32c: int
    rows: int
    def __init__(self, name: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., bytes: _Optional[int] = ..., index_crc32c: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class WriteCutResponse(_message.Message):
    __slots__ = ("files", "rows", "newest_times", "failure")
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIMES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[File]
    rows: _containers.RepeatedScalarFieldContainer[int]
    newest_times: _containers.RepeatedScalarFieldContainer[int]
    failure: Failure
    def __init__(self, files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., rows: _Optional[_Iterable[int]] = ..., newest_times: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class OpenReaderRequest(_message.Message):
    __slots__ = ("store", "name", "at", "epoch")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    store: str
    name: str
    at: Mark
    epoch: int
    def __init__(self, store: _Optional[str] = ..., name: _Optional[str] = ..., at: _Optional[_Union[Mark, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReaderRequest(_message.Message):
    __slots__ = ("store", "name", "opened_at")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    store: str
    name: str
    opened_at: Mark
    def __init__(self, store: _Optional[str] = ..., name: _Optional[str] = ..., opened_at: _Optional[_Union[Mark, _Mapping]] = ...) -> None: ...

class ReaderResponse(_message.Message):
    __slots__ = ("is_known", "was_known", "epoch", "failure")
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    WAS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    is_known: bool
    was_known: bool
    epoch: int
    failure: Failure
    def __init__(self, is_known: _Optional[bool] = ..., was_known: _Optional[bool] = ..., epoch: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class MarkAtRequest(_message.Message):
    __slots__ = ("reader", "epoch")
    READER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    reader: ReaderRequest
    epoch: int
    def __init__(self, reader: _Optional[_Union[ReaderRequest, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class ChangesRequest(_message.Message):
    __slots__ = ("reader", "buckets", "state")
    READER_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    reader: ReaderRequest
    buckets: Buckets
    state: bool
    def __init__(self, reader: _Optional[_Union[ReaderRequest, _Mapping]] = ..., buckets: _Optional[_Union[Buckets, _Mapping]] = ..., state: _Optional[bool] = ...) -> None: ...

class AdvanceRequest(_message.Message):
    __slots__ = ("reader", "to")
    READER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    reader: ReaderRequest
    to: Mark
    def __init__(self, reader: _Optional[_Union[ReaderRequest, _Mapping]] = ..., to: _Optional[_Union[Mark, _Mapping]] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("store", "table", "ids", "buckets")
    STORE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    store: str
    table: str
    ids: bytes
    buckets: bytes
    def __init__(self, store: _Optional[str] = ..., table: _Optional[str] = ..., ids: _Optional[bytes] = ..., buckets: _Optional[bytes] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("store", "table", "ids", "buckets")
    STORE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    store: str
    table: str
    ids: bytes
    buckets: bytes
    def __init__(self, store: _Optional[str] = ..., table: _Optional[str] = ..., ids: _Optional[bytes] = ..., buckets: _Optional[bytes] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("failure", "rows")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    rows: int
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., rows: _Optional[int] = ...) -> None: ...

class RowsBySlotRequest(_message.Message):
    __slots__ = ("store", "table")
    STORE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    store: str
    table: str
    def __init__(self, store: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class RowsBySlotResponse(_message.Message):
    __slots__ = ("failure", "rows")
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    rows: _containers.ScalarMap[int, int]
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., rows: _Optional[_Mapping[int, int]] = ...) -> None: ...

class LoadOrder(_message.Message):
    __slots__ = ("store", "client", "buckets", "emptied")
    STORE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    EMPTIED_FIELD_NUMBER: _ClassVar[int]
    store: str
    client: int
    buckets: Buckets
    emptied: Buckets
    def __init__(self, store: _Optional[str] = ..., client: _Optional[int] = ..., buckets: _Optional[_Union[Buckets, _Mapping]] = ..., emptied: _Optional[_Union[Buckets, _Mapping]] = ...) -> None: ...

class CheckBlocksRequest(_message.Message):
    __slots__ = ("order", "blocks")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    order: LoadOrder
    blocks: Blocks
    def __init__(self, order: _Optional[_Union[LoadOrder, _Mapping]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("number", "failure")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    failure: Failure
    def __init__(self, number: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class TicketRequest(_message.Message):
    __slots__ = ("store", "number")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ("rows", "tombstones", "filters", "ignored", "failure")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tombstones: int
    filters: int
    ignored: int
    failure: Failure
    def __init__(self, rows: _Optional[int] = ..., tombstones: _Optional[int] = ..., filters: _Optional[int] = ..., ignored: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class PrepareRestoreRequest(_message.Message):
    __slots__ = ("store", "client", "folder", "manifest", "buckets", "emptied", "ignore_unknown_tables")
    STORE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    EMPTIED_FIELD_NUMBER: _ClassVar[int]
    IGNORE_UNKNOWN_TABLES_FIELD_NUMBER: _ClassVar[int]
    store: str
    client: int
    folder: str
    manifest: bytes
    buckets: Buckets
    emptied: Buckets
    ignore_unknown_tables: bool
    def __init__(self, store: _Optional[str] = ..., client: _Optional[int] = ..., folder: _Optional[str] = ..., manifest: _Optional[bytes] = ..., buckets: _Optional[_Union[Buckets, _Mapping]] = ..., emptied: _Optional[_Union[Buckets, _Mapping]] = ..., ignore_unknown_tables: _Optional[bool] = ...) -> None: ...

class LoadRestoreResponse(_message.Message):
    __slots__ = ("rows", "failure")
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.ScalarMap[str, int]
    failure: Failure
    def __init__(self, rows: _Optional[_Mapping[str, int]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("store", "stamps", "life")
    STORE_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    store: str
    stamps: _containers.RepeatedCompositeFieldContainer[Stamp]
    life: Life
    def __init__(self, store: _Optional[str] = ..., stamps: _Optional[_Iterable[_Union[Stamp, _Mapping]]] = ..., life: _Optional[_Union[Life, _Mapping]] = ...) -> None: ...

class AssignOrder(_message.Message):
    __slots__ = ("store", "times", "add")
    STORE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    store: str
    times: bytes
    add: bool
    def __init__(self, store: _Optional[str] = ..., times: _Optional[bytes] = ..., add: _Optional[bool] = ...) -> None: ...

class AssignRequest(_message.Message):
    __slots__ = ("order", "blocks")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    order: AssignOrder
    blocks: Blocks
    def __init__(self, order: _Optional[_Union[AssignOrder, _Mapping]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("store", "now", "newest_times")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIMES_FIELD_NUMBER: _ClassVar[int]
    store: str
    now: int
    newest_times: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, store: _Optional[str] = ..., now: _Optional[int] = ..., newest_times: _Optional[_Iterable[int]] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("rows", "failure")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    rows: int
    failure: Failure
    def __init__(self, rows: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("resident_bytes", "limit_bytes", "failure")
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    resident_bytes: int
    limit_bytes: int
    failure: Failure
    def __init__(self, resident_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class BenchmarkRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class BenchmarkResponse(_message.Message):
    __slots__ = ("throughput", "failure")
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    throughput: float
    failure: Failure
    def __init__(self, throughput: _Optional[float] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class NoteRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class NotesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NotesResponse(_message.Message):
    __slots__ = ("notes", "failure")
    class NotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NOTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    notes: _containers.ScalarMap[str, str]
    failure: Failure
    def __init__(self, notes: _Optional[_Mapping[str, str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class LookRowRequest(_message.Message):
    __slots__ = ("store", "table", "key", "bucket")
    STORE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    store: str
    table: str
    key: int
    bucket: int
    def __init__(self, store: _Optional[str] = ..., table: _Optional[str] = ..., key: _Optional[int] = ..., bucket: _Optional[int] = ...) -> None: ...

class LookRowResponse(_message.Message):
    __slots__ = ("found", "weights", "failure")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    weights: _containers.RepeatedScalarFieldContainer[float]
    failure: Failure
    def __init__(self, found: _Optional[bool] = ..., weights: _Optional[_Iterable[float]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("store", "name", "log", "base_folder", "interval_seconds", "record_bytes", "position")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    BASE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    store: str
    name: str
    log: str
    base_folder: str
    interval_seconds: float
    record_bytes: int
    position: bytes
    def __init__(self, store: _Optional[str] = ..., name: _Optional[str] = ..., log: _Optional[str] = ..., base_folder: _Optional[str] = ..., interval_seconds: _Optional[float] = ..., record_bytes: _Optional[int] = ..., position: _Optional[bytes] = ...) -> None: ...

class PublishedRequest(_message.Message):
    __slots__ = ("store", "now", "saved")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    store: str
    now: bool
    saved: bool
    def __init__(self, store: _Optional[str] = ..., now: _Optional[bool] = ..., saved: _Optional[bool] = ...) -> None: ...

class PublishedResponse(_message.Message):
    __slots__ = ("numbers", "ended", "mark", "written", "failure")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EndedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.ScalarMap[str, int]
    ended: _containers.ScalarMap[str, int]
    mark: Mark
    written: int
    failure: Failure
    def __init__(self, numbers: _Optional[_Mapping[str, int]] = ..., ended: _Optional[_Mapping[str, int]] = ..., mark: _Optional[_Union[Mark, _Mapping]] = ..., written: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...
