from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from monolith.observe import signals

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="SIGUSR1 exists on POSIX only")


@pytest.fixture(autouse=True)
def handler_of_before() -> Iterator[None]:
    """Starts every test from the default action and gives back what was there."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_installing_twice_and_raising_the_signal_passes(capfd: pytest.CaptureFixture[str]) -> None:
    signals.add_siguser1_handler()
    signals.add_siguser1_handler()
    signal.raise_signal(signal.SIGUSR1)
    printed = capfd.readouterr().err
    assert printed.count(f"signal {int(signal.SIGUSR1)}: stacks of process") == 1
    assert "test_installing_twice_and_raising_the_signal_passes" in printed


def test_every_earlier_handler_is_called_with_signal_and_frame(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[str, int, str]] = []

    def handler(name: str, sig: int, frame: FrameType | None) -> None:
        assert frame is not None
        calls.append((name, sig, frame.f_code.co_name))

    signal.signal(signal.SIGUSR1, lambda sig, frame: handler("first", sig, frame))
    signals.add_siguser1_handler()
    ours = signal.getsignal(signal.SIGUSR1)
    assert callable(ours)

    def second(sig: int, frame: FrameType | None) -> None:
        handler("second", sig, frame)
        ours(sig, frame)

    signal.signal(signal.SIGUSR1, second)
    signals.add_siguser1_handler()
    signal.raise_signal(signal.SIGUSR1)
    here = "test_every_earlier_handler_is_called_with_signal_and_frame"
    assert calls == [("second", signal.SIGUSR1, here), ("first", signal.SIGUSR1, here)]
    assert capfd.readouterr().err.count("stacks of process") == 2  # one for each time it was put on top


@pytest.mark.parametrize("action", [signal.SIG_DFL, signal.SIG_IGN])
def test_an_action_that_cannot_be_called_is_skipped(action: signal.Handlers, capfd: pytest.CaptureFixture[str]) -> None:
    signal.signal(signal.SIGUSR1, action)
    signals.add_siguser1_handler()
    signal.raise_signal(signal.SIGUSR1)
    assert "stacks of process" in capfd.readouterr().err


def test_stacks_are_printed_even_when_the_earlier_handler_raises(capfd: pytest.CaptureFixture[str]) -> None:
    def broken(sig: int, frame: FrameType | None) -> None:
        raise KeyError(sig)

    signal.signal(signal.SIGUSR1, broken)
    signals.add_siguser1_handler()
    with pytest.raises(KeyError):
        signal.raise_signal(signal.SIGUSR1)
    assert "stacks of process" in capfd.readouterr().err


def test_all_threads_are_shown_by_name_with_what_they_do(capfd: pytest.CaptureFixture[str]) -> None:
    waiting, leave = threading.Event(), threading.Event()

    def wait_for_the_bus() -> None:
        waiting.set()
        leave.wait()

    thread = threading.Thread(target=wait_for_the_bus, name="passenger")
    thread.start()
    try:
        assert waiting.wait(60)
        signals.print_stack_trace(signal.SIGUSR1, sys._getframe())
    finally:
        leave.set()
        thread.join()
    printed = capfd.readouterr().err
    ours, _, other = printed.partition("thread passenger (")
    assert "in test_all_threads_are_shown_by_name_with_what_they_do" in ours
    assert "in wait_for_the_bus" in other


def test_a_signal_while_stacks_are_printed_does_not_print_them_again(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    signal.signal(signal.SIGUSR1, lambda sig, frame: calls.append(sig))
    signals.add_siguser1_handler()
    write = signals._write_to_stderr

    def write_with_an_impatient_user(text: str) -> None:
        signal.raise_signal(signal.SIGUSR1)
        write(text)

    monkeypatch.setattr(signals, "_write_to_stderr", write_with_an_impatient_user)
    for _ in range(2):
        signal.raise_signal(signal.SIGUSR1)
        assert capfd.readouterr().err.count("stacks of process") == 1
    assert len(calls) == 4


def test_a_missing_frame_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    signals.print_stack_trace(10, None)
    assert "no Python frame" in capfd.readouterr().err


def test_standard_error_replaced_by_an_object_or_by_nothing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    collected = io.StringIO()
    monkeypatch.setattr(sys, "stderr", collected)
    signals.print_stack_trace(10, sys._getframe())
    assert "stacks of process" in collected.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    signals.print_stack_trace(10, sys._getframe())


def test_off_the_main_thread_it_warns_and_installs_nothing() -> None:
    caught: list[Warning] = []

    def install() -> None:
        with pytest.warns(RuntimeWarning, match=r"main thread only, and this is thread 'worker-3'") as records:
            signals.add_siguser1_handler()
        caught.extend(record.message for record in records if isinstance(record.message, Warning))

    thread = threading.Thread(target=install, name="worker-3")
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_handler_from_outside_python_is_replaced_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with pytest.warns(RuntimeWarning, match="not set from Python"):
        signals.add_siguser1_handler()
    monkeypatch.undo()
    assert callable(signal.getsignal(signal.SIGUSR1))


def test_a_system_without_the_signal_raises_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGUSR1")
    with pytest.warns(RuntimeWarning, match="does not exist on this system"):
        signals.add_siguser1_handler()


def test_the_module_installs_it_and_the_package_does_not() -> None:
    program = """
import signal, sys
import monolith
assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, "import monolith installed a handler"
assert "monolith.observe.signals" not in sys.modules
import monolith.observe.signals
signal.raise_signal(signal.SIGUSR1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=55)
    assert "stacks of process" in done.stderr
    assert 'File "<string>", line 7, in <module>' in done.stderr
