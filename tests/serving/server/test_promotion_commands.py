"""Commands to a server: who may give them, what is said of wrong ones, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolith.errors import DataLossError
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.serving.server.http.rest import require_commander
from monolith.testing import SmallModel
from serving.server.promoted_server import SCORES, Served
from serving.server.test_rest import ask


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Expecting value"),
        ("[]", "its format is not 'monolith-promotion'"),
        ('{"format": "monolith-promotion", "version": 2, "models": {}}', "it is of version 2, and this build reads 1"),
        ('{"format": "monolith-promotion", "version": 1}', "it has no models"),
        ('{"format": "monolith-promotion", "version": 1, "models": {"a": {}}}', "model 'a': an object with labels"),
        (
            '{"format": "monolith-promotion", "version": 1, "models": {"a": STATE}}',
            "labels must be names with versions",
        ),
        ('{"format": "monolith-promotion", "ver', "Unterminated string"),
        ("\x80", "damaged"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(
    serve: Callable[..., Served], tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "promotion.json"
    state = json.dumps({"labels": {"stable": "one"}, "canary": None, "shadow": None, "frozen": []})
    file.write_text(text.replace("STATE", state), encoding="latin-1")
    with pytest.raises(DataLossError, match=r"promotion file .* is damaged: ") as caught:
        serve(file=str(file))
    assert sentence in caught.value.message
    assert "remove it" in caught.value.message


def test_a_file_that_cannot_be_written_leaves_all_as_it_was(serve: Callable[..., Served], tmp_path: Path) -> None:
    place = tmp_path / "kept"
    place.mkdir()
    served = serve(file=str(place / "promotion.json"))
    place.rmdir()
    assert served.tell("rollback", version=1).status == 404
    assert served.answer() == (2, SCORES[2])
    assert served.loaded() == [2]
    assert served.status()["labels"] == {}


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("label", {"label": "next", "version": 9}, 404, "there is no version 9; the newest are: 1, 2"),
    ("label", {"label": "", "version": 1}, 400, "label: must be a text"),
    ("label", {"label": "a/b", "version": 1}, 400, "label: must be a text"),
    ("label", {"label": "7", "version": 1}, 400, "and no number, got '7'"),
    ("label", {"label": "next", "version": "1"}, 400, "label: version must be an integer"),
    ("label", {"label": "next", "version": -1}, 400, "label: version must be an integer"),
    ("label", {"label": "next", "version": 2**64}, 400, "label: version must be an integer"),
    ("label", {"label": "next", "version": 1, "force": 1}, 400, "force: must be true or false, got '1'"),
    (
        "label",
        {"label": "next", "number": 1},
        400,
        "label: there is no field 'number'; fields are: label, version, force",
    ),
    ("canary", {"version": 1}, 400, "canary: share must be a number from 0 to 1, got None"),
    ("canary", {"version": 1, "share": 1.5}, 400, "canary: share must be a number from 0 to 1, got 1.5"),
    ("canary", {"version": 1, "share": float("nan")}, 400, "canary: share must be a number from 0 to 1, got nan"),
    ("canary", {"share": 0.5}, 400, "canary: give the version or the label that has the share"),
    ("canary", {"version": 1, "label": "old", "share": 0.5}, 400, "canary: give a version or a label, got both"),
    ("canary", {"label": "none", "share": 0.5}, 404, "there is no label 'none'; labels are: none"),
    ("canary", {"version": 1, "share": 0}, 400, "canary: a share of 0 ends it"),
    ("shadow", {"version": 9}, 404, "there is no version 9"),
    ("rollback", {}, 400, "rollback: version must be an integer >= 0, got 'None'"),
    ("rollback", {"version": 1, "follow": True}, 400, "follows no delta log"),
    ("reload", {}, 404, "there is no command 'reload'; commands are: label, canary, shadow, rollback, resume"),
]


def test_wrong_commands_are_named_and_change_nothing(serve: Callable[..., Served]) -> None:
    served = serve()
    before = served.status()
    for verb, fields, status, sentence in WRONG:
        reply = served.tell(verb, **fields)
        assert (reply.status, sentence in reply.error) == (status, True), (verb, fields, reply.body)
    assert served.status() == before
    for body, kind in ((b"{", "application/json"), (b"[]", "application/json"), (b"{}", "text/plain")):
        reply = ask(served.server, "/v1/promotion/ranker:resume", body, content_type=kind)
        assert reply.status == 400
    assert ask(served.server, "/v1/promotion/other:resume", {}, content_type="application/json").status == 404
    assert ask(served.server, "/v1/promotion/other").status == 404
    assert ask(served.server, "/v1/promotion/ranker:resume").status == 405


def test_commands_without_a_token_come_from_this_machine_and_from_no_web_page(serve: Callable[..., Served]) -> None:
    served = serve()
    headers = {"content_type": "application/json", "origin": "http://example.org"}
    page = ask(served.server, "/v1/promotion/ranker:resume", {}, **headers)
    assert (page.status, "web pages" in page.error) == (403, True)
    own = ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1")
    others = ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", None, "localhost", "")
    for address in own:
        require_commander(address, {}, knows_callers=False)
    for client in others:
        with pytest.raises(Exception, match="requires no token: it accepts them only from its own machine"):
            require_commander(client, {}, knows_callers=False)
        require_commander(client, {b"origin": b"http://a"}, knows_callers=True)


def test_commands_require_a_token(serve: Callable[..., Served]) -> None:
    served = serve(server={"token": "sesame"})
    assert served.tell("rollback", version=1).status == 401
    assert ask(served.server, "/v1/promotion").status == 401
    allowed = {"content_type": "application/json", "authorization": "Bearer sesame"}
    assert ask(served.server, "/v1/promotion/ranker:rollback", {"version": 1}, **allowed).status == 200


def test_a_server_without_promotion_reports_it() -> None:
    registry = ModelRegistry()
    registry.add("ranker", SmallModel())
    with ModelServer(registry) as server:
        reply = ask(server, "/v1/promotion")
    assert (reply.status, "keeps no versions" in reply.error) == (501, True)


@pytest.mark.parametrize("verb", ["label", "canary", "shadow", "rollback", "resume"])
def test_a_model_that_finds_its_versions_itself_is_listed_and_takes_no_commands(
    serve: Callable[..., Served], verb: str
) -> None:
    served = serve()
    served.registry.add("task", SmallModel(export=7))
    reply = ask(served.server, f"/v1/promotion/task:{verb}", {"version": 7}, content_type="application/json")
    assert reply.status == 412, reply.body
    assert reply.body["error"].startswith("model 'task': it takes no commands: a task, or an entry whose rows are at")
    found = ask(served.server, "/v1/promotion").body["models"]
    assert sorted(found) == ["ranker", "task"]
    assert found["task"].keys() == {*found["ranker"], "no_commands"}
    assert (found["task"]["answers"], found["task"]["available"]) == (7, [7])
    assert ask(served.server, "/v1/promotion/task").body["models"] == {"task": found["task"]}
    assert ask(served.server, "/v1/promotion/other").status == 404
