from monolith.rpc.protos import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Seat(_message.Message):
    __slots__ = ("role", "index", "token")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    token: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("role", "index", "address", "incarnation", "progress", "alive", "trains", "waits", "adopted_by")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    TRAINS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_BY_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    address: str
    incarnation: int
    progress: int
    alive: bool
    trains: bool
    waits: bool
    adopted_by: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., progress: _Optional[int] = ..., alive: _Optional[bool] = ..., trains: _Optional[bool] = ..., waits: _Optional[bool] = ..., adopted_by: _Optional[int] = ...) -> None: ...

class LostUpdates(_message.Message):
    __slots__ = ("worker", "server", "updates", "first")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    worker: int
    server: int
    updates: int
    first: int
    def __init__(self, worker: _Optional[int] = ..., server: _Optional[int] = ..., updates: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("version", "incarnation", "num_workers", "members", "restored", "finished", "step_offset", "steps", "barrier_placed", "barrier_action", "lost_updates", "stop_requested", "lost", "adoptable", "generation", "ended", "left", "num_shares")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STEP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BARRIER_PLACED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ACTION_FIELD_NUMBER: _ClassVar[int]
    LOST_UPDATES_FIELD_NUMBER: _ClassVar[int]
    STOP_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ADOPTABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARES_FIELD_NUMBER: _ClassVar[int]
    version: int
    incarnation: int
    num_workers: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    restored: bool
    finished: _containers.RepeatedScalarFieldContainer[int]
    step_offset: int
    steps: int
    barrier_placed: bool
    barrier_action: str
    lost_updates: _containers.RepeatedCompositeFieldContainer[LostUpdates]
    stop_requested: bool
    lost: _containers.RepeatedScalarFieldContainer[int]
    adoptable: _containers.RepeatedScalarFieldContainer[int]
    generation: int
    ended: bool
    left: _containers.RepeatedScalarFieldContainer[int]
    num_shares: int
    def __init__(self, version: _Optional[int] = ..., incarnation: _Optional[int] = ..., num_workers: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., restored: _Optional[bool] = ..., finished: _Optional[_Iterable[int]] = ..., step_offset: _Optional[int] = ..., steps: _Optional[int] = ..., barrier_placed: _Optional[bool] = ..., barrier_action: _Optional[str] = ..., lost_updates: _Optional[_Iterable[_Union[LostUpdates, _Mapping]]] = ..., stop_requested: _Optional[bool] = ..., lost: _Optional[_Iterable[int]] = ..., adoptable: _Optional[_Iterable[int]] = ..., generation: _Optional[int] = ..., ended: _Optional[bool] = ..., left: _Optional[_Iterable[int]] = ..., num_shares: _Optional[int] = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("state", "steps", "failure")
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    state: State
    steps: int
    failure: _parameter_server_pb2.Failure
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., steps: _Optional[int] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class StateResponse(_message.Message):
    __slots__ = ("state", "failure")
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    state: State
    failure: _parameter_server_pb2.Failure
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("seat", "num_workers", "address", "lease_seconds", "incarnation", "trains", "waits", "placed_action")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    PLACED_ACTION_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    num_workers: int
    address: str
    lease_seconds: float
    incarnation: int
    trains: bool
    waits: bool
    placed_action: str
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., num_workers: _Optional[int] = ..., address: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., incarnation: _Optional[int] = ..., trains: _Optional[bool] = ..., waits: _Optional[bool] = ..., placed_action: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("state", "incarnation", "taken", "owner", "seconds_since_renewal", "seconds_left", "renewals", "failure")
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_RENEWAL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    RENEWALS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    state: State
    incarnation: int
    taken: bool
    owner: str
    seconds_since_renewal: float
    seconds_left: float
    renewals: int
    failure: _parameter_server_pb2.Failure
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., incarnation: _Optional[int] = ..., taken: _Optional[bool] = ..., owner: _Optional[str] = ..., seconds_since_renewal: _Optional[float] = ..., seconds_left: _Optional[float] = ..., renewals: _Optional[int] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("seat", "progress")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    progress: int
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., progress: _Optional[int] = ...) -> None: ...

class SeatRequest(_message.Message):
    __slots__ = ("seat",)
    SEAT_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ...) -> None: ...

class Flag(_message.Message):
    __slots__ = ("index", "value")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    index: int
    value: bool
    def __init__(self, index: _Optional[int] = ..., value: _Optional[bool] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("worker", "finished")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    worker: int
    finished: bool
    def __init__(self, worker: _Optional[int] = ..., finished: _Optional[bool] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("seat", "flag", "place_barrier", "remove_barrier", "waits", "step_offset", "finish", "release", "lost_updates", "stop", "reset", "restored_step", "ended", "left")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    PLACE_BARRIER_FIELD_NUMBER: _ClassVar[int]
    REMOVE_BARRIER_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    STEP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    LOST_UPDATES_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    RESTORED_STEP_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    flag: Flag
    place_barrier: str
    remove_barrier: bool
    waits: bool
    step_offset: int
    finish: bool
    release: Release
    lost_updates: LostUpdates
    stop: bool
    reset: bool
    restored_step: int
    ended: bool
    left: bool
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., flag: _Optional[_Union[Flag, _Mapping]] = ..., place_barrier: _Optional[str] = ..., remove_barrier: _Optional[bool] = ..., waits: _Optional[bool] = ..., step_offset: _Optional[int] = ..., finish: _Optional[bool] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., lost_updates: _Optional[_Union[LostUpdates, _Mapping]] = ..., stop: _Optional[bool] = ..., reset: _Optional[bool] = ..., restored_step: _Optional[int] = ..., ended: _Optional[bool] = ..., left: _Optional[bool] = ...) -> None: ...

class AdoptResponse(_message.Message):
    __slots__ = ("worker", "state", "failure")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    state: State
    failure: _parameter_server_pb2.Failure
    def __init__(self, worker: _Optional[int] = ..., state: _Optional[_Union[State, _Mapping]] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class TakeFileRequest(_message.Message):
    __slots__ = ("seat", "queue", "digest", "num_look_ups", "seed", "worker", "turn", "epoch", "only_look")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOK_UPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ONLY_LOOK_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    queue: str
    digest: str
    num_look_ups: int
    seed: int
    worker: int
    turn: int
    epoch: int
    only_look: bool
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., queue: _Optional[str] = ..., digest: _Optional[str] = ..., num_look_ups: _Optional[int] = ..., seed: _Optional[int] = ..., worker: _Optional[int] = ..., turn: _Optional[int] = ..., epoch: _Optional[int] = ..., only_look: _Optional[bool] = ...) -> None: ...

class TakeFileResponse(_message.Message):
    __slots__ = ("path", "place", "look_up", "nothing_found", "failure")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LOOK_UP_FIELD_NUMBER: _ClassVar[int]
    NOTHING_FOUND_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    path: str
    place: str
    look_up: int
    nothing_found: bool
    failure: _parameter_server_pb2.Failure
    def __init__(self, path: _Optional[str] = ..., place: _Optional[str] = ..., look_up: _Optional[int] = ..., nothing_found: _Optional[bool] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class FoundFilesRequest(_message.Message):
    __slots__ = ("seat", "queue", "look_up", "files")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOOK_UP_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    queue: str
    look_up: int
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., queue: _Optional[str] = ..., look_up: _Optional[int] = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class GiveBackRequest(_message.Message):
    __slots__ = ("seat", "queue", "worker", "progress")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    queue: str
    worker: int
    progress: bytes
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., queue: _Optional[str] = ..., worker: _Optional[int] = ..., progress: _Optional[bytes] = ...) -> None: ...

class GiveBackResponse(_message.Message):
    __slots__ = ("files", "failure")
    FILES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    files: int
    failure: _parameter_server_pb2.Failure
    def __init__(self, files: _Optional[int] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class SavedJob(_message.Message):
    __slots__ = ("content", "state", "failure")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    state: State
    failure: _parameter_server_pb2.Failure
    def __init__(self, content: _Optional[bytes] = ..., state: _Optional[_Union[State, _Mapping]] = ..., failure: _Optional[_Union[_parameter_server_pb2.Failure, _Mapping]] = ...) -> None: ...

class LoadJobRequest(_message.Message):
    __slots__ = ("seat", "content")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    seat: Seat
    content: bytes
    def __init__(self, seat: _Optional[_Union[Seat, _Mapping]] = ..., content: _Optional[bytes] = ...) -> None: ...
