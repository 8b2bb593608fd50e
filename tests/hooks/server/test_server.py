"""The controller service over real gRPC: stop, resume, save and status of a session that trains."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import grpc
import pytest

from hooks.server.certificates import make_certificate
from hooks.server.training import Training, training
from monolith.cluster import BarrierOp
from monolith.cluster.addresses import split_address
from monolith.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from monolith.hooks.server import (
    ClientCredentials,
    ControllerClient,
    ServerCredentials,
    ServerHook,
    get_stub_from_model_dir,
    server_hook,
    step_gate,
)
from monolith.hooks.server.protos import controller_service_pb2 as messages
from monolith.testing import StepLoop

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Training]:
    with training(str(tmp_path)) as started:
        yield started


@pytest.fixture
def client(run: Training, tmp_path: Path) -> Iterator[ControllerClient]:
    with ControllerClient.of_model_dir(str(tmp_path), timeout_seconds=50) as opened:
        yield opened


def test_basic(run: Training, tmp_path: Path) -> None:
    """The original's case, with plain messages, from the thread that trains."""
    stub = get_stub_from_model_dir(str(tmp_path))
    stub.StopTraining(messages.StopTrainingRequest())
    with pytest.raises(grpc.RpcError) as refused:
        stub.StopTraining(messages.StopTrainingRequest())
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert list(stub.GetBlockStatus(messages.GetBlockStatusRequest()).blocked_indices) == [0]
    stub.ResumeTraining(messages.ResumeTrainingRequest())
    status = stub.GetBlockStatus(messages.GetBlockStatusRequest())
    assert (list(status.blocked_indices), list(status.unblocked_indices)) == ([], [0])
    stub.SaveCheckpoint(messages.SaveCheckpointRequest())
    run.step()
    stub.SaveCheckpoint(messages.SaveCheckpointRequest())
    assert run.saver.steps == [0, 1]
    assert stub.GetTrainingStatus(messages.GetTrainingStatusRequest()).global_step == 1
    stub.close()


def test_a_stopped_session_makes_no_step_saves_and_resumes(run: Training, client: ControllerClient) -> None:
    run.run_in_background()
    client.stop_training()
    with pytest.raises(AlreadyExistsError, match="placed already"):
        client.stop_training()
    client.save_checkpoint()  # served between steps: whatever ran when it came has ended
    step = client.get_global_step()
    client.save_checkpoint()
    assert run.saver.steps == [step, step]
    assert client.get_block_status() == ([0], [])
    client.resume_training()
    client.resume_training()
    assert client.get_block_status() == ([], [0])
    while client.get_global_step() == step:
        pass


def test_a_barrier_that_another_process_removes_lets_steps_resume_immediately(
    run: Training, client: ControllerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_gate, "_LOOK_SECONDS", 3600.0)  # so that only who is told goes on
    run.run_in_background()
    run.barrier.place_barrier("of another process")
    client.save_checkpoint()
    step = client.get_global_step()
    run.barrier.remove_barrier()
    while client.get_global_step() == step:
        pass


def test_saves_never_run_within_a_step(run: Training, client: ControllerClient) -> None:
    run.run_in_background()
    for _ in range(30):
        client.save_checkpoint()
    assert run.saver.during_step == [False] * 30
    assert run.saver.steps == sorted(run.saver.steps)


def test_a_save_waits_for_the_step_that_runs(run: Training, client: ControllerClient) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def long_step() -> None:
        begun.set()
        assert may_end.wait(30)

    stepper = threading.Thread(target=lambda: run.loop.run(long_step))
    stepper.start()
    assert begun.wait(30)
    saver = threading.Thread(target=client.save_checkpoint)
    saver.start()
    assert client.get_global_step() == 0  # the other thread of the server still answers
    assert run.saver.steps == []
    may_end.set()
    saver.join(30)
    stepper.join(30)
    assert run.saver.steps == [1]


def test_a_save_whose_caller_timed_out_is_not_made(run: Training, tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def long_step() -> None:
        begun.set()
        assert may_end.wait(30)

    stepper = threading.Thread(target=lambda: run.loop.run(long_step))
    stepper.start()
    assert begun.wait(30)
    with (
        ControllerClient.of_model_dir(str(tmp_path), timeout_seconds=0.3) as hurried,
        pytest.raises(DeadlineExceededError, match="may still take effect"),
    ):
        hurried.save_checkpoint()
    while run.hook._gate._requests:
        pass  # the server notices that the caller has gone
    may_end.set()
    stepper.join(30)
    run.step()
    assert run.saver.steps == []


def test_workers_are_listed(tmp_path: Path) -> None:
    with (
        training(str(tmp_path), num_workers=3) as run,
        ControllerClient.of_model_dir(str(tmp_path)) as client,
    ):
        client.stop_training()
        run.barrier.enter(2)
        assert client.get_block_status() == ([0, 2], [1])
        client.resume_training()
        assert client.get_block_status() == ([2], [0, 1])


def test_an_error_of_the_save_reaches_the_caller_and_training_continues(
    run: Training, client: ControllerClient
) -> None:
    run.saver.error = ResourceExhaustedError("no space in the model directory")
    with pytest.raises(ResourceExhaustedError, match="no space in the model directory"):
        client.save_checkpoint()
    run.saver.error = KeyError("a bug")
    with pytest.raises(InternalError, match="KeyError: 'a bug'"):
        client.save_checkpoint()
    run.saver.error = None
    run.step()
    client.save_checkpoint()
    assert run.saver.steps == [1]


def test_a_bad_message_never_takes_it_down(run: Training, client: ControllerClient) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 400, b""):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(run.hook.address.removeprefix("unix:"))
            connection.sendall(noise)
    with grpc.insecure_channel(run.hook.address) as channel:
        for path, status in [
            ("/Controller/StopTraining", grpc.StatusCode.INTERNAL),
            ("/Controller/DropTables", grpc.StatusCode.UNIMPLEMENTED),
            ("/nonsense", grpc.StatusCode.UNIMPLEMENTED),
        ]:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path)(b"\xff\xff\xff\xff\x0f", timeout=50)
            assert refused.value.code() is status
        answer = channel.unary_unary("/Controller/GetTrainingStatus")(b"\x0a\x03abc", timeout=50)  # an unknown field
        assert messages.GetTrainingStatusResponse.FromString(answer).global_step == 0
    assert client.get_global_step() == 0
    assert client.get_block_status() == ([], [0])


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_the_address_file_exists_while_it_serves(tmp_path: Path, host: str | None) -> None:
    file = tmp_path / "model" / "controller_server_addr.txt"
    with training(str(tmp_path / "model"), host=host) as run:
        assert file.read_text() == run.hook.address
        assert run.hook.address.startswith("unix:/" if host is None else "127.0.0.1:")
    assert not file.exists()
    assert run.hook.address == ""
    with pytest.raises(NotFoundError, match=r"no address in .*controller_server_addr\.txt; .* is one running"):
        ControllerClient.of_model_dir(str(tmp_path / "model"))


def test_the_address_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    file = tmp_path / "controller_server_addr.txt"
    with training(str(tmp_path)):
        file.write_text("10.0.0.1:99")
    assert file.read_text() == "10.0.0.1:99"


def test_a_model_directory_may_be_remote() -> None:
    try:
        with (
            training("memory://models/ranker") as run,
            ControllerClient.of_model_dir("memory://models/ranker") as client,
        ):
            run.step()
            assert client.get_global_step() == 1
    finally:
        fsspec.filesystem("memory").store.clear()


def test_after_the_end_the_caller_gets_an_error(tmp_path: Path) -> None:
    with training(str(tmp_path)) as run, ControllerClient(run.hook.address) as client:
        run.hook._gate.close()
        run.hook._service.session = None
        for call in (client.save_checkpoint, client.stop_training, client.resume_training, client.get_global_step):
            with pytest.raises(FailedPreconditionError, match="no session trains now"):
                call()
        address = run.hook.address
    with (
        ControllerClient(address, timeout_seconds=60) as late,
        pytest.raises(UnavailableError, match=f"controller at {address} does not answer"),
    ):
        late.get_global_step()


def test_an_error_in_a_step_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), training(str(tmp_path)) as run:
        run.loop.run(lambda: 1 // 0)
    assert run.hook.address == ""


def test_a_rebuilt_session_keeps_the_server(run: Training, client: ControllerClient) -> None:
    with pytest.raises(ZeroDivisionError):
        run.loop.run(lambda: 1 // 0)
    address = run.hook.address
    run.hook.after_create_session(run.loop)
    assert run.hook.address == address
    client.save_checkpoint()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with training(str(tmp_path), host="127.0.0.1") as run:
        _, port = split_address(run.hook.address)
        hook = ServerHook(str(tmp_path / "other"), BarrierOp(1), run.saver, host="127.0.0.1", port=port)
        with (
            pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{port}; is the port taken"),
            StepLoop([hook]),
        ):
            pytest.fail("two servers on one port")
    assert not (tmp_path / "other" / "controller_server_addr.txt").exists()


def test_an_address_that_cannot_be_written_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a file where the folder should be")
    with pytest.raises(InvalidArgumentError, match="model"), training(str(tmp_path / "model")):
        pytest.fail("nobody could find the server")


def test_two_threads_and_twenty_seconds_of_grace() -> None:
    assert (server_hook.NUM_THREADS, server_hook.GRACE_SECONDS) == (2, 20.0)


def test_a_client_waits_some_time() -> None:
    with pytest.raises(ValueError, match="timeout_seconds must be > 0, got 0"):
        ControllerClient("127.0.0.1:1", timeout_seconds=0)


class TestToken:
    def test_the_right_one_passes_and_others_do_not(self, tmp_path: Path) -> None:
        with training(str(tmp_path), credentials=ServerCredentials(token="open sesame")) as run:  # noqa: S106 - a test's
            for wrong in (None, "open", "Open Sesame", "open sesame, really"):
                credentials = ClientCredentials(token=wrong)
                with (
                    ControllerClient.of_model_dir(str(tmp_path), credentials=credentials) as client,
                    pytest.raises(UnauthenticatedError, match="the token is wrong or missing"),
                ):
                    client.stop_training()
            assert not run.barrier.is_barrier_placed()
            right = ClientCredentials(token="open sesame")  # noqa: S106 - a test's
            with ControllerClient.of_model_dir(str(tmp_path), credentials=right) as client:
                client.stop_training()
            assert run.barrier.is_barrier_placed()
            run.barrier.remove_barrier()

    def test_metadata_is_compared_in_full(self) -> None:
        server = ServerCredentials(token="t")  # noqa: S106 - a test's
        assert server.accepts([("user-agent", "x"), ("authorization", "Bearer t")])
        assert not server.accepts([("authorization", "Bearer t"), ("authorization", "Bearer t")])
        assert not server.accepts([("authorization", "t")])
        assert not server.accepts([("authorization", "Bearer \udcff")])
        assert not server.accepts([("authorization", b"Bearer t")])
        assert not server.accepts([])
        assert ServerCredentials().accepts([])

    @pytest.mark.parametrize("token", ["", " t", "t\n", "schlüssel"])
    def test_what_cannot_travel_is_refused(self, token: str) -> None:
        for credentials in (ServerCredentials, ClientCredentials):
            with pytest.raises(ValueError, match="a token is printable ASCII"):
                credentials(token=token)

    def test_it_is_not_shown(self) -> None:
        assert "sesame" not in repr(ServerCredentials(token="sesame")) + repr(ClientCredentials(token="sesame"))  # noqa: S106

    @pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])  # noqa: S104 - what is warned about
    def test_an_open_door_is_warned_about(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str) -> None:
        with training(str(tmp_path), host=host) as run:
            assert split_address(run.hook.address)[0] != "0.0.0.0"  # noqa: S104 - nobody can call that
        assert "requires no token" in caplog.text

    def test_a_door_that_is_none_is_not(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with training(str(tmp_path)):
            pass
        with training(str(tmp_path), host="127.0.0.1", credentials=ServerCredentials(token="t")):  # noqa: S106 - a test's
            pass
        assert "requires no token" not in caplog.text


class TestTls:
    def test_encrypted_calls_pass_and_plain_ones_do_not(self, tmp_path: Path) -> None:
        server = make_certificate(tmp_path, "server")
        shown = ServerCredentials(tls_certificate=server.certificate, tls_key=server.key)
        with training(str(tmp_path), host="127.0.0.1", credentials=shown) as run:
            trusting = ClientCredentials(tls_ca=server.certificate)
            with ControllerClient.of_model_dir(str(tmp_path), credentials=trusting) as client:
                assert client.get_global_step() == 0
            stranger = ClientCredentials(tls_ca=make_certificate(tmp_path, "stranger").certificate)
            for credentials in (None, stranger):
                with (
                    ControllerClient(run.hook.address, credentials=credentials, timeout_seconds=60) as client,
                    pytest.raises(UnavailableError, match="under TLS"),
                ):
                    client.get_global_step()

    def test_callers_may_have_to_show_a_certificate(self, tmp_path: Path) -> None:
        server, caller = (make_certificate(tmp_path, name) for name in ("server", "caller"))
        asks = ServerCredentials(
            tls_certificate=server.certificate, tls_key=server.key, tls_client_ca=caller.certificate
        )
        with training(str(tmp_path), host="127.0.0.1", credentials=asks) as run:
            shows = ClientCredentials(tls_ca=server.certificate, tls_certificate=caller.certificate, tls_key=caller.key)
            with ControllerClient(run.hook.address, credentials=shows) as client:
                assert client.get_global_step() == 0
            hides = ClientCredentials(tls_ca=server.certificate)
            with (
                ControllerClient(run.hook.address, credentials=hides, timeout_seconds=60) as client,
                pytest.raises(UnavailableError),
            ):
                client.get_global_step()

    def test_halves_are_refused(self) -> None:
        with pytest.raises(ValueError, match="given together"):
            ServerCredentials(tls_certificate="server.pem")
        with pytest.raises(ValueError, match="tls_client_ca is for TLS"):
            ServerCredentials(tls_client_ca="ca.pem")
        with pytest.raises(ValueError, match="needs tls_ca"):
            ClientCredentials(tls_certificate="c.pem", tls_key="c.key")
