"""`scripts/check-words` counts private words in prose only; `.ci/lint` runs it on the project."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from script_module import load_script

WORDS = "[limits]\ndocuments = 1\nmessages = 0\ncomments = 0\ntests = 0\n\n[words]\n'\\banew\\b' = \"from scratch\"\n"


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    return load_script("check-words")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "scripts/words.toml": WORDS,
        "README.md": "Begins anew.\n\n```\nanew\n```\n\n`anew` renewed\n",
        "src/module.py": "VALUE = 1  # no words\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("docs/page.md", "It starts anew.\n", "documents"),
        ("src/more.py", '"""Starts anew."""\n', "comments"),
        ("src/more.py", 'class A:\n    x: int\n    """Made anew."""\n', "comments"),
        ("src/more.py", "x = 1  # anew\n", "comments"),
        ("src/more.py", 'raise ValueError(f"{1}: begins anew")\n', "messages"),
        ("core/a.h", "int a;  // anew\n", "comments"),
        ("core/a.cc", 'fail("begin anew");\n', "messages"),
        ("scripts/run", "#!/usr/bin/env python3\nx = 1  # anew\n", "comments"),
        ("scripts/parts/run.py", 'raise SystemExit("begins anew")\n', "messages"),
        ("scripts/run", "#!/usr/bin/env bash\necho 'anew # anew'  # starts anew\n", "comments"),
        ("scripts/run", '#!/bin/sh\necho "it\'s"  # starts anew\n', "comments"),
        (".ci/run", "#!/usr/bin/env bash\n# Starts anew.\n", "comments"),
        ("examples/model.py", '"""Starts anew."""\n', "comments"),
        ("examples/online/README.md", "It starts anew.\n", "documents"),
        ("fuzz/target.cc", "int a;  // anew\n", "comments"),
        ("tests/test_a.py", "def test_it_starts_anew() -> None: ...\n", "tests"),
    ],
)
def test_one_word_more_fails_and_is_listed_with_its_line(
    checker: ModuleType, project: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, kind: str
) -> None:
    assert checker.main([], root=project) == 0
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text, encoding="utf-8")
    assert checker.main(["--list", kind], root=project) == 1
    line = text[: text.rindex("anew")].count("\n") + 1
    assert f"{name}:{line}: {kind}: 'anew'; the field's word: from scratch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/more.py", 'def f(anew: int) -> None:\n    """Starts.\n\n    Args:\n        anew: A number.\n    """\n'),
        ("scripts/run", "#!/usr/bin/env bash\necho anew 'starts # anew'\n"),
        ("scripts/data.toml", "# anew\n"),
        ("scripts/data", "anew\n"),
        ("core/a_test.cc", "// anew\n"),
        ("src/a_pb2.py", "# anew\n"),
    ],
)
def test_code_data_and_generated_files_are_not_counted(
    checker: ModuleType, project: Path, name: str, text: str
) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text, encoding="utf-8")
    assert checker.main([], root=project) == 0


def test_limits_only_fall(checker: ModuleType, project: Path) -> None:
    (project / "README.md").write_text("Plain.\n", encoding="utf-8")
    assert checker.main(["--update"], root=project) == 0
    assert "documents = 0" in (project / "scripts/words.toml").read_text(encoding="utf-8")
    (project / "README.md").write_text("Begins anew.\n", encoding="utf-8")
    assert checker.main(["--update"], root=project) == 1
    assert "documents = 0" in (project / "scripts/words.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["absent.md"], "no such file or folder: absent.md"), (["--update", "README.md"], "give no paths")],
)
def test_arguments_without_effect_are_refused(
    checker: ModuleType, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        checker.main(arguments)
    assert message in capsys.readouterr().err
