"""The environment is read when it is asked for."""

from __future__ import annotations

import pytest

from monolith import environment


def test_a_variable_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONOLITH_T_A", raising=False)
    assert environment.get("MONOLITH_T_A") is None
    monkeypatch.setenv("MONOLITH_T_A", "")
    assert environment.get("MONOLITH_T_A") == ""
    monkeypatch.setenv("MONOLITH_T_A", "1")
    assert environment.get("MONOLITH_T_A") == "1"


def test_the_first_variable_that_is_not_empty_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_T_A", "")
    monkeypatch.setenv("MONOLITH_T_B", "b")
    monkeypatch.setenv("MONOLITH_T_C", "c")
    assert environment.first_of("MONOLITH_T_A", "MONOLITH_T_B", "MONOLITH_T_C") == "b"
    assert environment.first_of("MONOLITH_T_A", "MONOLITH_T_NONE") is None


def test_variables_are_found_by_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_T_A", "a")
    monkeypatch.setenv("MONOLITH_U_A", "u")
    assert environment.starting_with("MONOLITH_T_", "MONOLITH_U_") == {"MONOLITH_T_A": "a", "MONOLITH_U_A": "u"}


def test_a_variable_is_set_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_T_A", "a")
    environment.put("MONOLITH_T_A", "b")
    assert environment.get("MONOLITH_T_A") == "b"
