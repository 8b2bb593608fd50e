"""Starts Python programs as forks of a process that has imported what they import: milliseconds instead of seconds.

Within `ForkingProcess.forked_starts`, `subprocess.Popen` starts ``python PROGRAM``, ``-c CODE`` and ``-m MODULE`` that
way. Such a process is a child of the one that started it, with the environment, the folder and the descriptors that it
was given. Real starts remain: other programs, and interpreters with options, a `preexec_fn` or a user of their own.
A shell starts such a fork by `programs.Programs.shell_commands`.

Run as a program, this is the process that forks. It has one thread, whatever it has imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self
from unittest import mock

PRELOADED = (
    "torch._dynamo",  # torch loads it at the first step otherwise
    "torch.distributed.run",
    "monolith.cli._roles",
    "monolith.cli.serve",
    "monolith.serving.server.http.protocol",
    "grpc_health.v1",
    "benchmarks.suites.sync.ranks",
    "system.attack",
)
_TESTS = Path(__file__).resolve().parent
_PLAIN_OPTIONS = ("-u", "-P")
"""Options of the interpreter that a fork obeys."""
_READ_AT_THE_START = ("LD_PRELOAD", "PYTHONWARNINGS", "PYTHONHASHSEED", "PYTHONDEVMODE")
"""Variables that only a started interpreter obeys."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Fields of /proc/self/stat, counted after the name of the process."""
_ROOM = 4096
"""For the arguments that process listings show of a fork."""
_POLL_SECONDS = 0.0005
_MOST_DESCRIPTORS = 64
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class _Order:
    options: list[str]
    program: list[str]
    """Arguments of the interpreter after its options."""
    variables: dict[str, str]
    folder: str
    cores: list[int]
    group: int
    """Process group, unless there is a new session; 0: a group of its own."""
    new_session: bool
    targets: list[int]
    """Numbers that the descriptors have in the fork."""
    depth: int
    tied: bool
    """Whether it dies with its parent."""


class ForkingProcess:
    """The process that forks, as its parent sees it."""

    def __init__(
        self, connection: socket.socket, fixed: Mapping[str, str], process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._connection = connection
        self._fixed = {name: fixed.get(name) for name in _READ_AT_THE_START}
        self._process = process
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def started(cls, **variables: str) -> Self:
        """A new one, which imports, with further variables in its environment."""
        ours, theirs = socket.socketpair()
        given = {**os.environ, **variables}  # noqa: TID251 - a child's is its parent's
        with theirs:
            command = [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno()), "-" * _ROOM]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=given)
        return cls(ours, given, process)

    @contextlib.contextmanager
    def forked_starts(self, depth: int = 0) -> Iterator[None]:
        """Python programs that this process starts by `subprocess` are forks until the context ends.

        Args:
            depth: Generations of forks that start their programs in the same way; each has a process that forks.
        """
        real = subprocess._fork_exec  # type: ignore[attr-defined]  # the one call in which they start

        def fork_exec(*arguments: Any) -> int:
            order = _order_of(arguments, depth) if os.getpid() == self._owner else None
            if order is None or any(order.variables.get(name) != value for name, value in self._fixed.items()):
                return int(real(*arguments))
            return self._fork(order, _descriptors(arguments))

        with mock.patch.object(subprocess, "_fork_exec", fork_exec):
            yield

    def _fork(self, order: _Order, descriptors: Sequence[int]) -> int:
        """The fork's process number. The parent that dies right after the fork passes it on to this process."""
        with self._lock:
            _set(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                _send(self._connection, asdict(order), descriptors)
                return int(receive(self._connection)[0])
            finally:
                _set(_PR_SET_CHILD_SUBREAPER, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        if self._process is not None:
            self._process.kill()  # it has nothing to put away, and its interpreter would take a while to
            self._process.wait()


def _order_of(arguments: Sequence[Any], depth: int) -> _Order | None:
    """What to fork for the arguments of `_fork_exec`; None: a real start."""
    command, executables, close_others, kept, folder, variables, *_ = arguments
    _, new_session, group, *user, umask, before_exec = arguments[14:22]
    words, tied = [os.fsdecode(word) for word in command], False
    if words[1:3] == ["-I", "-S"] and Path(words[3]).name == "_tied.py" and words[4] == str(os.getpid()):
        words, tied = words[5:], True
    if words[0] != sys.executable or os.fsencode(words[0]) not in executables:
        return None
    program = list(itertools.dropwhile(_PLAIN_OPTIONS.__contains__, words[1:]))
    options = words[1 : len(words) - len(program)]
    is_plain = bool(program) and (program[0] in {"-c", "-m"} or not program[0].startswith("-"))
    if not is_plain or not close_others or any(each not in {None, -1} for each in (*user, umask, before_exec)):
        return None
    given = None if variables is None else dict(os.fsdecode(each).split("=", 1) for each in variables)
    return _Order(
        options=options,
        program=program,
        variables=dict(os.environ) if given is None else given,  # noqa: TID251 - a child's
        folder=str(Path(os.fsdecode(folder) if folder is not None else ".").resolve(strict=True)),
        cores=sorted(os.sched_getaffinity(0)),
        group=os.getpgrp() if group == -1 else group,
        new_session=bool(new_session),
        targets=[0, 1, 2, *(each for each in kept if each != arguments[13])],
        depth=depth,
        tied=tied,
    )


def _descriptors(arguments: Sequence[Any]) -> list[int]:
    """Those of this process that the fork gets as its standard ones, and those that it keeps."""
    standard = [given if given != -1 else own for own, given in enumerate((arguments[6], *arguments[9:12:2]))]
    return [*standard, *(each for each in arguments[3] if each != arguments[13])]


def _send(connection: socket.socket, value: object, descriptors: Sequence[int] = ()) -> None:
    text = json.dumps(value).encode() + b"\n"
    connection.sendall(text[socket.send_fds(connection, [text], descriptors) :])


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """The next value, and its descriptors.

    Raises:
        EOFError: the other end is closed.
    """
    text, descriptors = b"", []
    while not text.endswith(b"\n"):
        part, given, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, _MOST_DESCRIPTORS)
        if not part:
            raise EOFError
        text += part
        descriptors += given
    return json.loads(text), descriptors


def _set(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# The process that forks


def _serve(connection: socket.socket) -> NoReturn:
    """Forks for each order, until the other end is closed."""
    gc.collect()
    gc.freeze()  # a collection in a fork would write to the pages that it shares
    while True:
        try:
            fields, descriptors = receive(connection)
        except (EOFError, ConnectionError):
            os._exit(0)
        order, parent = _Order(**fields), os.getppid()
        answer, said = os.pipe()
        between = os.fork()
        if between == 0:
            _fork_twice(order, descriptors, parent, said)
        os.waitpid(between, 0)
        os.close(said)
        _send(connection, int(os.read(answer, 32)))
        for each in (answer, *descriptors):
            os.close(each)


def _fork_twice(order: _Order, descriptors: Sequence[int], parent: int, said: int) -> NoReturn:
    """Forks, and ends: the kernel gives the fork to the parent, which has asked for that."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(_POLL_SECONDS)
    if os.getppid() != parent:
        os._exit(1)  # the parent has ended
    with contextlib.ExitStack() as stack:
        try:
            try:
                _take_place(order)
            finally:
                os.write(said, str(os.getpid()).encode())
            _become(order, descriptors, stack)
        except BaseException:  # noqa: BLE001 - it must not run the loop of its parent
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        _end(_status_of(order))


def _take_place(order: _Order) -> None:
    """Makes this fork, for other processes, what it was started as."""
    if order.tied:
        _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if order.new_session:
        os.setsid()
    else:
        with contextlib.suppress(OSError):  # of another session, or gone
            os.setpgid(0, order.group)
    os.sched_setaffinity(0, order.cores)
    _show([sys.executable, *order.options, *order.program])


def _become(order: _Order, descriptors: Sequence[int], stack: contextlib.ExitStack) -> None:
    """Makes this fork what a started interpreter is before its first line."""
    _take_descriptors(descriptors, order.targets)
    os.chdir(order.folder)
    os.environ.clear()  # noqa: TID251 - of this process
    os.environ.update(order.variables)  # noqa: TID251 - as above
    tempfile.tempdir = None  # as TMPDIR has it
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    unbuffered = "-u" in order.options or "PYTHONUNBUFFERED" in order.variables
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1 if unbuffered else -1, closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    if order.depth > 0:
        stack.enter_context(_of_its_own().forked_starts(order.depth - 1))


def _take_descriptors(given: Sequence[int], targets: Sequence[int]) -> None:
    """Gives descriptors their numbers, and closes all others."""
    above = max(*targets, *given) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in given]
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) not in moved:
            with contextlib.suppress(OSError):  # of the listing itself
                os.close(int(path.name))
    for descriptor, target in zip(moved, targets, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)


def _of_its_own() -> ForkingProcess:
    """A process that forks for this one, forked before this one runs anything."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork():
        theirs.close()
        return ForkingProcess(ours, os.environ)  # noqa: TID251 - its own
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    connection = theirs.detach()
    _take_descriptors([null, null, null, connection], [0, 1, 2, 3])
    _serve(socket.socket(fileno=3))


def _show(arguments: Sequence[str]) -> None:
    """Sets the arguments that process listings show, as far as there is room."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    begin, end = (int(fields[place]) for place in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    shown = b"\0".join(os.fsencode(word) for word in arguments)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _status_of(order: _Order) -> int:
    """Runs the program to its end; the exit status of an interpreter."""
    import torch  # noqa: PLC0415 - imported before the fork

    torch.set_num_threads(int(order.variables.get("OMP_NUM_THREADS") or len(order.cores)))
    kind, *arguments = order.program
    program, *given = (kind, *arguments) if kind not in {"-c", "-m"} else arguments
    first = {"-c": "", "-m": order.folder}.get(kind, str(Path(kind).resolve().parent))
    path = [each for each in order.variables.get("PYTHONPATH", "").split(os.pathsep) if each]
    path = [*([] if "-P" in order.options else [first]), *path]
    sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
    sys.argv = [kind, *given]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    try:
        if kind == "-m":
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # what -m does
        elif kind == "-c":
            exec(compile(program, "<string>", "exec"), main.__dict__)  # noqa: S102 - the program
        else:
            main.__dict__.update(__file__=kind, __cached__=None)
            exec(compile(Path(kind).read_bytes(), kind, "exec"), main.__dict__)  # noqa: S102 - as above
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - as an interpreter prints it
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """Ends as an interpreter does: threads first, then what was to be done at the end."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)


def main() -> NoReturn:
    """Imports, and forks until the other end is closed."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    own = [str(_TESTS.parent), str(_TESTS)]
    sys.path[0:1] = own
    for name in PRELOADED:
        importlib.import_module(name)
    del sys.path[: len(own)]
    assert len(list(Path("/proc/self/task").iterdir())) == 1, (
        "a fork has the locks of other threads, and not the threads"
    )
    _serve(connection)


if __name__ == "__main__":
    main()
