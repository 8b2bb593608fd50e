"""docs/parity.md keeps its word: all 69 modules, and every claim with a symbol and a test of behaviour behind it."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest

from monolith import environment
from parity_ledger import NO_COUNTERPART, ROOT, Row, cases, claimed_tests, rows

MODULES = frozenset(
    {
        "native_training.clip_ops_test",
        "native_training.cluster_manager",
        "native_training.cluster_manager_test",
        "native_training.consul",
        "native_training.consul_test",
        "native_training.cpu_sync_training_test",
        "native_training.cpu_training",
        "native_training.cpu_training_distributed_test_binary",
        "native_training.hooks.server.server_lib_test",
        "native_training.hooks.session_hooks",
        "native_training.hooks.session_hooks_test",
        "native_training.hvd_lib",
        "native_training.input",
        "native_training.nested_tensors",
        "native_training.nested_tensors_test",
        "native_training.net_utils",
        "native_training.net_utils_test",
        "native_training.optimizers.adamom",
        "native_training.optimizers.adamom_test",
        "native_training.optimizers.rmsprop",
        "native_training.optimizers.rmsprop_test",
        "native_training.optimizers.rmspropv2_test",
        "native_training.optimizers.shampoo",
        "native_training.prefetch_queue",
        "native_training.prefetch_queue_test",
        "native_training.ps_benchmark",
        "native_training.ps_benchmark_test",
        "native_training.ragged_utils",
        "native_training.ragged_utils_test",
        "native_training.remote_predict_ops",
        "native_training.restore_test",
        "native_training.runner_utils",
        "native_training.runner_utils_test",
        "native_training.runtime.ops.gen_monolith_ops",
        "native_training.save_utils",
        "native_training.save_utils_test",
        "native_training.service_discovery",
        "native_training.service_discovery_test",
        "native_training.serving_ps_test",
        "native_training.session_run_hooks",
        "native_training.session_run_hooks_test",
        "native_training.signal_utils",
        "native_training.signal_utils_test",
        "native_training.static_reshape_op",
        "native_training.static_reshape_op_test",
        "native_training.summary.summary_ops",
        "native_training.summary.summary_ops_test",
        "native_training.summary.utils",
        "native_training.summary.utils_test",
        "native_training.sync_hooks",
        "native_training.sync_hooks_test",
        "native_training.sync_training_hooks",
        "native_training.sync_training_hooks_test",
        "native_training.tensor_utils",
        "native_training.tensor_utils_test",
        "native_training.test_utils",
        "native_training.touched_key_set_ops",
        "native_training.touched_key_set_ops_test",
        "native_training.utils",
        "native_training.utils_test",
        "native_training.variables",
        "native_training.variables_test",
        "native_training.yarn_runtime",
        "native_training.yarn_runtime_test",
        "native_training.zk_utils",
        "path_utils",
        "tpu_runner",
        "utils",
        "utils_test",
    }
)
STATUS = re.compile(r"works|open|partial \(missing: [^;]+; closed by: [^;]+\)")
LOOKS_AT_NAMES = frozenset({"ast", "inspect", "hasattr", "getmembers", "dir", "vars", "globals", "__all__"})
"""What a test that only looks for names uses; one of behaviour needs none of it."""
ASSERTS = frozenset({"raises", "warns", "fail", "eventually", "wait_until"})
"""What a test may do instead of asserting by itself."""


def imports(symbol: str) -> bool:
    """Whether a dotted name is a module, or an attribute reached from the longest module prefix of it."""
    parts = symbol.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@cache
def _parsed(file_name: str) -> ast.Module | None:
    path = ROOT / file_name
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def find_test(test_id: str) -> ast.FunctionDef | None:
    """The test that ``file::[Class::]function`` names."""
    file_name, *names = test_id.split("::")
    found: ast.stmt | ast.Module | None = _parsed(file_name)
    for name in names:
        scope = found.body if isinstance(found, ast.Module | ast.ClassDef) else []
        found = next((node for node in scope if getattr(node, "name", None) == name), None)
    return found if isinstance(found, ast.FunctionDef) and found.name.startswith("test_") else None


def _with_helpers(test_id: str, test: ast.FunctionDef) -> Iterator[ast.AST]:
    """The parts of a test, and of what it uses of its own file: helpers, classes and fixtures."""
    tree = _parsed(test_id.partition("::")[0])
    assert tree is not None
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    waiting: list[ast.AST] = [test]
    seen = {test.name}
    while waiting:
        for node in ast.walk(waiting.pop()):
            yield node
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if name in own and name not in seen:
                seen.add(name)
                waiting.append(own[name])


def what_it_lacks(test_id: str) -> str | None:
    """Why a test shows nothing: it is not there, asserts nothing or looks at names; None if it shows something."""
    test = find_test(test_id)
    if test is None:
        return "is not there"
    parts = list(_with_helpers(test_id, test))
    by_others = any(name in ASSERTS or name.startswith("assert_") for name in _names(parts))
    if not by_others and not any(isinstance(node, ast.Assert) for node in parts):
        return "asserts nothing"
    looks = sorted(_names(ast.walk(test)) & LOOKS_AT_NAMES)
    return f"looks at names, by {', '.join(looks)}, and not at behaviour" if looks else None


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    found = (getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes)
    return {str(name) for name in found if name}


def test_every_upstream_module_has_exactly_one_row() -> None:
    names = [row.module for row in rows()]
    assert len(names) == len(MODULES) == 69
    assert set(names) == MODULES


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.module)
def test_row_states_what_it_did_where_it_lives_and_how_far_it_is(row: Row) -> None:
    assert row.purpose not in {"", "-"}
    assert row.symbols, "the row names no room"
    assert all(symbol == "monolith" or symbol.startswith("monolith.") for symbol in row.symbols)
    assert STATUS.fullmatch(row.status), f"status {row.status!r} is none of works, partial (...), open"


@pytest.mark.parametrize("row", [row for row in rows() if row.claims], ids=lambda row: row.module)
def test_claim_has_a_symbol_that_imports_and_tests_of_behaviour(row: Row) -> None:
    assert row.tests, "the row claims something and names no test"
    assert [symbol for symbol in row.symbols if not imports(symbol)] == []
    assert {name: lack for name in row.tests if (lack := what_it_lacks(name))} == {}


@pytest.mark.parametrize("row", [row for row in rows() if row.status == "works"], ids=lambda row: row.module)
def test_what_works_is_shown_in_ci(row: Row) -> None:
    assert [name for name, reason in row.tests.items() if not reason] != [], "every test of the row may be skipped"


def test_an_open_row_names_no_test() -> None:
    assert [row.module for row in rows() if not row.claims and row.tests] == []


def test_every_case_of_the_upstream_saver_has_a_test_of_behaviour_or_a_reason() -> None:
    assert len(cases()) == 50
    for case in cases():
        if not case.shown_by.startswith(NO_COUNTERPART):
            assert {name: lack for name in case.tests if (lack := what_it_lacks(name))} == {}
            assert case.tests, f"{case.name} names no test and gives no reason"


def test_the_checks_reject_what_is_missing() -> None:
    assert imports("monolith.errors.OpError")
    assert not imports("monolith.errors.NoSuchError")
    assert not imports("monolith.no_such_room")
    assert what_it_lacks("tests/test_import_core.py::test_core_has_the_version_of_the_package") is None
    assert what_it_lacks("tests/test_parity.py::test_that_nobody_wrote") == "is not there"
    assert what_it_lacks("tests/test_parity.py::imports") == "is not there"
    assert what_it_lacks("tests/no_such_file.py::test_x") == "is not there"
    looking = "tests/cluster/test_times_and_counts.py::test_defaults"
    assert what_it_lacks(looking) == "looks at names, by inspect, and not at behaviour"


class TestSkippedClaims:
    """A run of pytest of its own, on a file some of whose tests are claims."""

    CLAIMS: ClassVar = {
        "test_made_up.py::test_runs": "",
        "test_made_up.py::test_skips": "",
        "test_made_up.py::test_may_skip": "needs a GPU",
        "test_made_up.py::TestSome::test_runs_in_one_case": "",
        "test_made_up.py::test_skips_in_its_fixture": "",
        "test_skips_whole.py::test_anything": "",
    }
    FILES: ClassVar = {
        "conftest.py": """
            import skipped_claims
            def pytest_configure(config):
                if not hasattr(config, "workerinput"):
                    config.pluginmanager.register(skipped_claims.SkippedClaims({claims}, is_error={is_error}))
        """,
        "test_made_up.py": """
            import pytest
            @pytest.fixture
            def absent(): pytest.skip("it is not installed")
            def test_runs(): pass
            def test_nobody_names(): pytest.skip("whatever")
            @pytest.mark.skipif(True, reason="no time")
            def test_skips(): pass
            def test_may_skip(): pytest.skip("no GPU")
            def test_skips_in_its_fixture(absent): pass
            class TestSome:
                @pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.skip("no GPU"))])
                def test_runs_in_one_case(self, device): pass
        """,
        "test_skips_whole.py": """
            import pytest
            pytest.importorskip("no_such_module")
            def test_anything(): pass
        """,
    }

    def run(self, folder: Path, *arguments: str, is_error: bool = True) -> subprocess.CompletedProcess[str]:
        for name, text in self.FILES.items():
            values = {"claims": repr(self.CLAIMS), "is_error": is_error} if name == "conftest.py" else {}
            (folder / name).write_text(textwrap.dedent(text).format(**values) if values else textwrap.dedent(text))
        (folder / "pytest.ini").write_text("[pytest]\n")
        variables = {
            **environment.starting_with(""),
            "PYTHONPATH": str(ROOT / "tests"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        own = ["-p", "no:cacheprovider", f"--basetemp={folder / 'temporary'}"]
        command = [sys.executable, "-m", "pytest", "-q", *own, *arguments, str(folder)]
        return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)

    @pytest.mark.parametrize("arguments", [(), ("-p", "xdist", "-n", "2")])
    def test_in_ci_a_claim_whose_test_is_skipped_fails_the_run(
        self, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        ended = self.run(tmp_path, *arguments)
        assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
        named = re.findall(r"^(\S+): let it run, or write", ended.stdout, re.MULTILINE)
        assert named == [
            "test_made_up.py::test_skips",
            "test_made_up.py::test_skips_in_its_fixture",
            "test_skips_whole.py::test_anything",
        ]

    def test_elsewhere_it_is_reported(self, tmp_path: Path) -> None:
        ended = self.run(tmp_path, is_error=False)
        assert ended.returncode == pytest.ExitCode.OK, ended.stdout
        assert "claims of docs/parity.md whose tests were skipped" in ended.stdout

    def test_it_watches_every_test_that_the_page_names(self, pytestconfig: pytest.Config) -> None:
        assert len(claimed_tests()) > 150
        assert {row.module for row in rows() if not row.tests.keys() <= claimed_tests().keys()} == set()
        is_worker = environment.get("PYTEST_XDIST_WORKER") is not None
        assert pytestconfig.pluginmanager.has_plugin("skipped-claims") is not is_worker
