"""Dumps: whatever kubectl prints is read, and what is cut off is refused with its place."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.backends import dump, observed
from arena_topo.errors import UsageError

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "namespace": "default"}}
LIST = {"apiVersion": "v1", "items": [NODE, POD], "kind": "List", "metadata": {}}


def read(folder: Path, *texts: str | bytes) -> list[dict[str, Any]]:
    paths = []
    for index, text in enumerate(texts):
        path = folder / f"dump-{index}"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths.append(str(path))
    return [dict(one) for one in dump.read(paths)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(LIST),
        json.dumps(LIST, indent=4),
        "\ufeff" + json.dumps(LIST) + "\n\n",
        json.dumps(NODE) + json.dumps(POD),
        json.dumps(NODE) + "\n" + json.dumps(POD) + "\n",
        json.dumps([NODE, POD]),
        json.dumps({"kind": "List", "items": [LIST]}),
        json.dumps({"items": [NODE, POD]}),
        yaml.safe_dump(LIST),
        yaml.safe_dump_all([NODE, POD]),
        "---\n" + yaml.safe_dump(NODE) + "---\n" + yaml.safe_dump(POD) + "---\n",
        "# a comment\n" + yaml.safe_dump([NODE, POD]),
    ],
)
def test_every_way_to_write_two_objects_is_read(tmp_path: Path, text: str):
    assert read(tmp_path, text) == [NODE, POD]


@pytest.mark.parametrize(
    "text",
    [
        "levels: []\nbeyondGBps: 100.0\n",
        "# a comment\n---\nlevels: []\nbeyondGBps: 100.0\n",
        '\ufeff{"levels": [],\n\t"beyondGBps": 1e2}\n',
        "{levels: [], beyondGBps: 100.0}",
    ],
)
def test_a_document_is_yaml_or_json(tmp_path: Path, text: str):
    path = tmp_path / "net.yaml"
    path.write_text(text)
    assert dump.document(str(path)) == ({"levels": [], "beyondGBps": 100.0}, str(path))


def test_a_document_may_come_from_standard_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"levels: []")))
    assert dump.document("-") == ({"levels": []}, "standard input")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"levels: [", "line 1, column 10: not YAML: "),
        (b"a: 1\n---\nb: 2\n", "line 2, column 1: not YAML: "),
        (b"a: \xff", "is not UTF-8 text"),
        (b"a: 2026-02-30", "not YAML: "),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_document_that_is_none_is_refused_with_its_place(
    tmp_path: Path, text: bytes, problem: str
):
    path = tmp_path / "net.yaml"
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        dump.document(str(path))
    assert caught.value.message.startswith(f"{path}: {problem}")
    assert caught.value.hint is None


def test_a_document_that_cannot_be_read_is_refused(tmp_path: Path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError) as caught:
            dump.document(str(path))
        assert caught.value.message.startswith(f"{path}: cannot be read: ")


@pytest.mark.parametrize("first", [True, False])
def test_items_of_a_typed_list_get_its_kind_wherever_it_stands(tmp_path: Path, *, first: bool):
    items = {"items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}
    kind = {"kind": "NodeList", "apiVersion": "v1"}
    text = json.dumps({**kind, **items} if first else {**items, **kind})
    assert [(one["kind"], one["metadata"]["name"]) for one in read(tmp_path, text)] == [
        ("Node", "a"),
        ("Node", "b"),
    ]
    text = yaml.safe_dump({**kind, **items})
    assert [one["kind"] for one in read(tmp_path, text)] == ["Node", "Node"]


def test_several_files_follow_one_another(tmp_path: Path):
    assert read(tmp_path, json.dumps(NODE), yaml.safe_dump(POD)) == [NODE, POD]


def test_an_empty_list_is_no_objects(tmp_path: Path):
    assert read(tmp_path, '{"kind": "List", "items": []}') == []
    assert read(tmp_path, '{"kind": "List", "items": null}') == []


def test_things_that_are_no_objects_are_passed_over(tmp_path: Path):
    assert read(tmp_path, json.dumps({"items": [None, 7, "x", NODE]})) == [NODE]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch):
    stdin = SimpleNamespace(buffer=io.BytesIO(json.dumps(LIST).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(dump.read(["-"])) == [NODE, POD]


@pytest.mark.parametrize("cut", [1, 20, 60, 140, len(json.dumps(LIST)) - 1])
def test_a_json_dump_that_is_cut_off_names_file_and_position(tmp_path: Path, cut: int):
    with pytest.raises(UsageError, match=r"dump-0: line 1, column \d+ \(character \d+\)") as caught:
        read(tmp_path, json.dumps(LIST)[:cut])
    assert "cut off" in caught.value.message
    assert "kubectl get nodes,pods" in (caught.value.hint or "")


def test_the_position_of_a_fault_is_right_far_into_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dump, "_PIECE", 64)
    text = json.dumps({"kind": "List", "items": [NODE] * 50 + ["MARK"]}, indent=1)
    broken = text.replace('"MARK"', "nope")
    with pytest.raises(UsageError) as caught:
        read(tmp_path, broken)
    at = broken.index("nope")
    line = broken.count("\n", 0, at) + 1
    column = at - broken.rindex("\n", 0, at)
    assert f"line {line}, column {column} (character {at}): not JSON" in caught.value.message


def test_cut_yaml_and_text_that_is_neither_are_refused_with_their_line(tmp_path: Path):
    with pytest.raises(UsageError, match=r"dump-0: line 3, column 1: not YAML"):
        read(tmp_path, 'kind: "Node\nmetadata:\n')
    with pytest.raises(UsageError, match=r"dump-0: .*no Kubernetes object"):
        read(tmp_path, "error: the server could not find the requested resource")


def test_json_without_kind_and_items_is_no_dump(tmp_path: Path):
    with pytest.raises(UsageError, match=r"dump-0: .*no Kubernetes object"):
        read(tmp_path, '{"node-a": {"metadata": {}}}')


def test_an_empty_or_missing_or_binary_file_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="dump-0: the dump is empty"):
        read(tmp_path, " \n")
    with pytest.raises(UsageError, match="nowhere: cannot be read: No such file"):
        list(dump.read([str(tmp_path / "nowhere")]))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read(tmp_path, b'{"kind": "\xff\xfe"}')


def test_trailing_garbage_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="expected another object, got 'x'"):
        read(tmp_path, json.dumps(NODE) + "x")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    things=st.lists(
        st.dictionaries(st.text(min_size=1), _JSON, max_size=3).map(
            lambda one: {key: one[key] for key in one if key != "items"} | {"kind": "Node"}
        ),
        max_size=5,
    ),
    piece=st.integers(1, 40),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_pieces_of_any_size_read_what_was_written(
    *,
    things: list[dict[str, Any]],
    piece: int,
    indent: int | None,
    ascii_only: bool,
    tmp_path_factory: pytest.TempPathFactory,
):
    path = tmp_path_factory.mktemp("dump") / "state.json"
    text = json.dumps({"items": things, "kind": "List"}, indent=indent, ensure_ascii=ascii_only)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump, "_PIECE", piece)
        assert list(dump.read([str(path)])) == things


@pytest.mark.parametrize("piece", range(1, 40))
def test_numbers_are_not_cut_at_the_end_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
):
    monkeypatch.setattr(dump, "_PIECE", piece)
    one = {"kind": "Node", "generation": 1234567, "ratio": -12.5e-3, "metadata": {}}
    assert read(tmp_path, json.dumps(one)) == [one]


def test_a_dump_is_a_cluster(tmp_path: Path):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(LIST))
    cluster = observed.cluster(dump.read([str(path)]), source=str(path))
    assert [one.name for one in cluster.nodes] == ["node-a"]
    assert cluster.source == str(path)


def test_a_yaml_list_that_is_cut_before_its_kind_is_refused(tmp_path: Path):
    """Kubectl sorts keys, so `kind: List` is the first thing that a cut takes away."""
    text = yaml.safe_dump(LIST)
    cut = text[: text.index("kind: List")]
    with pytest.raises(UsageError, match="cut off"):
        read(tmp_path, cut)
