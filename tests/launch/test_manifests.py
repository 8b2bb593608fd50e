"""Manifests are what their schedulers take, and their processes understand what they are told."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from monolith.cli import main
from monolith.cluster.discovery import ServiceDiscoveryType, TfConfigServiceDiscovery
from monolith.launch import LaunchPlan, Resources
from monolith.launch.manifests import K8sJob, YarnService, yaml_text
from monolith.train import RunnerConfig
from monolith.train.parameters import flags

SCHEMA = json.loads((Path(__file__).parent / "yarn_service.schema.json").read_text(encoding="utf-8"))
TASK = "monolith.testing:ExampleTask"
STORE = ["--model_dir", "s3://bucket/ranker", "--num_ps", "2", "--num_workers", "3"]
ZK = ["--discovery_type", "zk", "--zk_server", "h:1", "--deep_insight_name", "ranker"]


def printed(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[str, str]:
    assert main(["launch", TASK, *given]) == 0
    shown = capsys.readouterr()
    return shown.out, shown.err


def k8s(capsys: pytest.CaptureFixture[str], *given: str) -> dict[str, dict[str, Any]]:
    """What was printed, by kind and name; each a right object of Kubernetes."""
    text, _ = printed(capsys, "--print", "k8s", "--image", "registry/ranker:7", *given)
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents}


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def said_to(container: dict[str, Any], index: int) -> RunnerConfig:
    """What a process of this container hears under an index, as the kubelet puts it in."""
    words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)).replace("$$(", "$(") for word in container["args"]]
    return flags.parse(RunnerConfig(), words[2:])


class TestKubernetes:
    def test_it_is_a_secret_a_service_and_a_job_of_each_kind(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = k8s(capsys, *STORE, "--num_extra_ps", "1")
        assert list(found) == [
            "Secret/example-task-token",
            "Service/example-task",
            "Job/example-task-ps",
            "Job/example-task-worker",
        ]
        for kind, number in (("ps", 3), ("worker", 3)):
            spec = found[f"Job/example-task-{kind}"]["spec"]
            assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (number, number, "Indexed")

    def test_every_process_finds_its_place_by_the_names_of_pods(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = k8s(capsys, *STORE, "--name", "ranker", "--namespace", "ml", "--port", "7070")
        for kind in ("ps", "worker"):
            job = found[f"Job/ranker-{kind}"]
            assert job["spec"]["template"]["spec"]["subdomain"] == found["Service/ranker"]["metadata"]["name"]
            options = said_to(container_of(job), 1)
            assert options.tf_config is not None
            service = TfConfigServiceDiscovery(options.tf_config)
            assert (service.server_type, service.index) == (kind, 1)
            assert service.addr == f"ranker-{kind}-1.ranker.ml.svc:7070"
            assert service.query("ps")[0] == "ranker-ps-0.ranker.ml.svc:7070"
            assert (options.num_ps, options.num_workers, options.model_dir) == (2, 3, "s3://bucket/ranker")

    def test_the_token_reaches_the_processes_as_a_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = k8s(capsys, *STORE)
        assert len(found["Secret/example-task-token"]["stringData"]["token"]) > 30
        container = container_of(found["Job/example-task-worker"])
        (mount,) = container["volumeMounts"]
        assert said_to(container, 0).token_file == f"{mount['mountPath']}/token"
        (volume,) = found["Job/example-task-worker"]["spec"]["template"]["spec"]["volumes"]
        assert (volume["name"], volume["secret"]["secretName"]) == (mount["name"], "example-task-token")

    def test_resources_are_those_of_the_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = k8s(capsys, *STORE, "--ps_cpus", "0.5", "--ps_memory", "16Gi", "--worker_memory", "2G")
        server = container_of(found["Job/example-task-ps"])
        assert server["resources"]["requests"] == {"cpu": "0.5", "memory": str(16 * 2**30)}
        assert server["resources"]["limits"] == {"memory": str(16 * 2**30)}
        assert said_to(server, 0).monolith_default_machine_info_mem_limit == int(0.9 * 16 * 2**30)
        worker = container_of(found["Job/example-task-worker"])
        assert worker["resources"]["requests"] == {"cpu": "1", "memory": "2000000000"}

    def test_probes_check_the_port_that_processes_listen_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        container = container_of(k8s(capsys, *STORE)["Job/example-task-ps"])
        (port,) = container["ports"]
        assert port["containerPort"] == 7000
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[name]["tcpSocket"] == {"port": port["name"]}

    def test_exit_codes_mean_what_they_mean_to_every_launcher(self, capsys: pytest.CaptureFixture[str]) -> None:
        job = k8s(capsys, *STORE, "--max_restarts", "4")["Job/example-task-worker"]["spec"]
        disruption, again, fault = job["podFailurePolicy"]["rules"]
        assert disruption["onPodConditions"][0]["type"] == "DisruptionTarget"
        assert (again["action"], again["onExitCodes"]["values"]) == ("Ignore", [75, 130])
        assert (fault["action"], fault["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
        assert {75, 130, 137} < set(fault["onExitCodes"]["values"])
        assert not {1, 2, 74} & set(fault["onExitCodes"]["values"])
        assert job["backoffLimit"] == 4 * 3
        assert job["template"]["spec"]["restartPolicy"] == "Never", "or the rules would be refused"

    def test_a_folder_needs_a_volume_that_is_mounted_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        job = k8s(capsys, *STORE, "--model_dir", "/models/ranker", "--volume_claim", "models")["Job/example-task-ps"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container_of(job)["volumeMounts"]}
        volumes = {each["name"]: each for each in job["spec"]["template"]["spec"]["volumes"]}
        assert volumes[mounts["/models/ranker"]]["persistentVolumeClaim"] == {"claimName": "models"}

    def test_a_discovery_service_of_the_users_is_kept(self, capsys: pytest.CaptureFixture[str]) -> None:
        container = container_of(k8s(capsys, *STORE, *ZK)["Job/example-task-worker"])
        options = said_to(container, 2)
        assert (options.discovery_type, options.zk_server, options.index) == (ServiceDiscoveryType.ZK, "h:1", 2)
        assert options.tf_config is None
        assert "livenessProbe" not in container, "ports are free ones then"

    def test_values_that_look_like_variables_are_values(self, capsys: pytest.CaptureFixture[str]) -> None:
        container = container_of(k8s(capsys, *STORE, "--input_path", "$(rm) yes: #1")["Job/example-task-ps"])
        assert said_to(container, 0).input_path == "$(rm) yes: #1"

    def test_the_how_to_names_the_existing_resources(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, how_to = printed(capsys, "--print", "k8s", "--image", "i", *STORE, "--namespace", "ml")
        assert "kubectl -n ml apply -f job.yaml" in how_to
        assert "job/example-task-worker" in how_to
        assert "s3://bucket/ranker" in how_to


class TestYarn:
    def service(self, capsys: pytest.CaptureFixture[str], *given: str) -> dict[str, Any]:
        text, _ = printed(capsys, "--print", "yarn", *STORE, *ZK, *given)
        document = json.loads(text)
        jsonschema.validate(document, SCHEMA)
        assert isinstance(document, dict)
        return document

    def test_it_is_a_service_of_two_components(self, capsys: pytest.CaptureFixture[str]) -> None:
        service = self.service(capsys, "--queue", "ml", "--worker_cpus", "1.5", "--worker_memory", "3Gi")
        assert (service["name"], service["queue"]) == ("example-task", "ml")
        ps, worker = service["components"]
        assert (ps["name"], ps["number_of_containers"]) == ("ps", 2)
        assert (worker["name"], worker["number_of_containers"]) == ("worker", 3)
        assert worker["resource"] == {"cpus": 2, "memory": "3072"}
        assert "artifact" not in ps

    def test_its_processes_parse_their_launch_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        service = self.service(capsys, "--input_path", "a b", "--image", "registry/ranker:7", "--max_restarts", "2")
        for component in service["components"]:
            words = shlex.split(component["launch_command"].replace("${COMPONENT_ID}", "1"))
            assert words[:3] == ["monolith", component["name"], TASK]
            options = flags.parse(RunnerConfig(), words[3:])
            assert (options.index, options.input_path, options.discovery_type) == (1, "a b", ServiceDiscoveryType.ZK)
            assert options.token_file == "conf/token"  # noqa: S105 - a file
            (file,) = component["configuration"]["files"]
            assert file["dest_file"] == "token"
            assert component["artifact"] == {"id": "registry/ranker:7", "type": "DOCKER"}
            assert component["configuration"]["properties"]["yarn.service.container-failure.retry.max"] == "2"
            assert component["restart_policy"] == "ON_FAILURE"

    def test_a_token_of_the_users_is_not_replaced(self, capsys: pytest.CaptureFixture[str]) -> None:
        service = self.service(capsys, "--token_file", "/etc/token")
        assert all("files" not in each["configuration"] for each in service["components"])
        assert "--token_file /etc/token" in service["components"][0]["launch_command"]

    def test_the_how_to_names_the_existing_resources(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, how_to = printed(capsys, "--print", "yarn", *STORE, *ZK)
        assert "yarn app -launch example-task job.json" in how_to


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--print", "k8s", *STORE], "--image: name an image that has monolith and the task"),
        (["--print", "k8s", "--image", "i", *STORE, "--name", "My_Job"], "--name: must be small letters, digits and -"),
        (["--print", "k8s", "--image", "i", *STORE, "--name", "x" * 41], "at most 40 of them"),
        (["--print", "k8s", "--image", "i", *STORE, "--port", "0"], "--port: must be from 1 to 65535, got 0"),
        (
            ["--print", "k8s", "--image", "i", *STORE, "--model_dir", "/m"],
            "--volume_claim: /m is a folder that all pods",
        ),
        (["--print", "k8s", "--image", "i", *STORE, "--queue", "q"], "--queue: is of --print yarn, got --print k8s"),
        (["--print", "k8s", "--image", "i", *STORE, "--ps_memory", "lots"], "memory: expected a number of bytes"),
        (["--print", "k8s", "--image", "i", "--model_dir", "s3://b"], "give --num_ps 1 or more"),
        (["--print", "yarn", *STORE], "--discovery_type: YARN places containers anywhere"),
        (["--print", "yarn", *STORE, "--discovery_type", "mlp"], "--discovery_type: YARN places containers anywhere"),
        (["--print", "yarn", *STORE, *ZK, "--namespace", "x"], "--namespace: is of --print k8s"),
        (["--print", "yarn", *STORE, *ZK, "--name", "A"], "--name: must be small letters"),
        (["--print", "k8s", "--image", "i", *STORE, "--dc_aware"], "option dc_aware=True (from flag) is refused"),
    ],
)
def test_what_cannot_be_printed_is_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", TASK, *given]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert said in line


def test_the_secret_is_not_shown_where_a_job_is() -> None:
    plan = LaunchPlan(task="m:T", options=RunnerConfig(num_ps=1, model_dir="s3://b"), resources={"ps": Resources()})
    assert "secret" not in repr(K8sJob(plan=plan, name="j", image="i", token="secret"))  # noqa: S106 - a test's
    options = RunnerConfig(num_ps=1, model_dir="s3://b", discovery_type=ServiceDiscoveryType.CONSUL, uuid="u")
    yarn = YarnService(
        plan=LaunchPlan(task="m:T", options=options),
        name="j",
        token="secret",  # noqa: S106 - a test's
    )
    assert "secret" not in repr(yarn)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [], "b": {}, "c": [[1, [2]], {"d": None}], "e": [{"f": 1, "g": [True]}]},
        {"texts": ["yes", "No", "1", "1e3", "~", "", " a", "a: b", "# c", "- d", "null", "\N{SNOWMAN}\n", '"', "é"]},
        {"True": 1, "x y": {"on": "off"}, "0": -1.5},
    ],
)
def test_what_is_written_as_yaml_is_read_as_it_was(value: dict[str, Any]) -> None:
    assert list(yaml.safe_load_all(yaml_text([value, {"a": 1}]))) == [value, {"a": 1}]


def test_a_token_is_a_new_one_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = {
        re.findall(r"token: (\S+)", printed(capsys, "--print", "k8s", "--image", "i", *STORE)[0])[0] for _ in range(2)
    }
    assert len(tokens) == 2
