"""docs/parity.md keeps its word: all 69 modules, and every claim with a symbol and a test behind it."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

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
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Row:
    module: str
    purpose: str
    symbols: list[str]
    tests: list[str]
    status: str
    differences: str

    @property
    def claims(self) -> bool:
        return self.status != "open"


@cache
def rows() -> tuple[Row, ...]:
    lines = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        if not line.startswith("| `"):
            continue
        module, purpose, lives, test, status, differences = (cell.strip() for cell in line.strip("|").split(" | "))
        found.append(Row(module.strip("`"), purpose, CODE.findall(lives), CODE.findall(test), status, differences))
    return tuple(found)


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


def has_test(test_id: str) -> bool:
    """Whether ``file::[Class::]function`` names a test that stands in that file."""
    file_name, *names = test_id.split("::")
    path = ROOT / file_name
    if not path.is_file() or not names:
        return False
    scope: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in names:
        match = next((node for node in scope if getattr(node, "name", None) == name), None)
        if match is None:
            return False
        scope = match.body if isinstance(match, ast.ClassDef) else []
    return names[-1].startswith("test_")


def test_every_module_of_the_original_has_exactly_one_row() -> None:
    names = [row.module for row in rows()]
    assert len(names) == len(MODULES) == 69
    assert set(names) == MODULES


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.module)
def test_row_says_what_it_did_where_it_lives_and_how_far_it_is(row: Row) -> None:
    assert row.purpose not in {"", "-"}
    assert row.symbols, "the row names no room"
    assert all(symbol == "monolith" or symbol.startswith("monolith.") for symbol in row.symbols)
    assert STATUS.fullmatch(row.status), f"status {row.status!r} is none of works, partial (...), open"


@pytest.mark.parametrize("row", [row for row in rows() if row.claims], ids=lambda row: row.module)
def test_claim_has_a_symbol_that_imports_and_a_test_that_exists(row: Row) -> None:
    assert row.tests, "the row claims something and names no test"
    assert [symbol for symbol in row.symbols if not imports(symbol)] == []
    assert [test_id for test_id in row.tests if not has_test(test_id)] == []


def test_an_open_row_names_no_test() -> None:
    assert [row.module for row in rows() if not row.claims and row.tests] == []


def test_the_checks_refuse_what_is_not_there() -> None:
    assert imports("monolith.errors.OpError")
    assert not imports("monolith.errors.NoSuchError")
    assert not imports("monolith.no_such_room")
    assert has_test("tests/test_parity.py::test_the_checks_refuse_what_is_not_there")
    assert not has_test("tests/test_parity.py::test_that_nobody_wrote")
    assert not has_test("tests/test_parity.py::imports")
    assert not has_test("tests/no_such_file.py::test_x")
