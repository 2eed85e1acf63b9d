"""Dumps: whatever kubectl prints is read, and where it is cut off the place is named."""

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
from kube_objects import bare, claim, resource_slice

from arena_topo.clusters import dump, observed
from arena_topo.errors import UsageError
from arena_topo.topology import members

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
        (b"a: 2026-02-30", "line 1, column 4: not YAML: '2026-02-30' is no time"),
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
    assert "docs/how-it-works.md" in (caught.value.hint or "")


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


def damaged(folder: Path, *texts: str | bytes) -> tuple[list[Any], list[str]]:
    """The objects of some dumps, and what is said of those that are damaged."""
    paths = []
    for index, text in enumerate(texts):
        path = folder / f"dump-{index}"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths.append(str(path))
    found = list(dump.read(paths))
    objects = [one for one in found if not isinstance(one, dump.Damage)]
    return objects, [one.text for one in found if isinstance(one, dump.Damage)]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_json_dump_that_is_cut_off_in_its_first_object_is_refused_with_the_position(
    tmp_path: Path, cut: int
):
    with pytest.raises(UsageError, match=r"dump-0: line 1, column \d+ \(character \d+\)") as caught:
        read(tmp_path, json.dumps(LIST)[:cut])
    assert "cut off" in caught.value.message
    assert "kubectl get nodes,pods" in (caught.value.hint or "")


@pytest.mark.parametrize(("cut", "whole"), [(140, 1), (len(json.dumps(LIST)) - 1, 2)])
def test_objects_before_the_cut_and_other_files_are_read_and_the_place_is_named(
    tmp_path: Path, cut: int, whole: int
):
    other = {**NODE, "metadata": {"name": "node-b"}}
    objects, (said,) = damaged(tmp_path, json.dumps(LIST)[:cut], json.dumps(other))
    assert objects == [*[NODE, POD][:whole], other]
    assert said.startswith(f"{tmp_path / 'dump-0'}: line 1, column ")
    assert "cut off" in said
    assert said.endswith("so GPUs that look free may be in use")


def test_a_file_without_any_object_beside_a_good_one_is_a_note(tmp_path: Path):
    assert damaged(tmp_path, json.dumps(NODE), "")[0] == [NODE]
    objects, (said,) = damaged(tmp_path, b"\x00\xff", json.dumps(NODE))
    assert objects == [NODE]
    assert "dump-0: line 1, column 1 (character 0): is not UTF-8 text" in said


def test_of_several_files_without_any_object_the_first_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="dump-0: the dump is empty"):
        read(tmp_path, "", '{"kind": "No')


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("piece", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
def test_what_windows_powershell_writes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, piece: int, write: Any
):
    monkeypatch.setattr(dump, "_PIECE", piece)
    mark = "" if encoding == "utf-16" else "\ufeff"
    assert read(tmp_path, (mark + write(LIST)).encode(encoding)) == [NODE, POD]


def test_a_small_file_may_be_utf_16_too(tmp_path: Path):
    path = tmp_path / "net.yaml"
    path.write_text("levels: []\n", encoding="utf-16")
    assert dump.document(str(path))[0] == {"levels": []}


def test_the_position_of_a_fault_is_right_far_into_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dump, "_PIECE", 64)
    text = json.dumps({"kind": "List", "items": [NODE] * 50 + ["MARK"]}, indent=1)
    broken = text.replace('"MARK"', "nope")
    objects, (said,) = damaged(tmp_path, broken)
    at = broken.index("nope")
    line = broken.count("\n", 0, at) + 1
    column = at - broken.rindex("\n", 0, at)
    assert f"line {line}, column {column} (character {at}): not JSON" in said
    assert objects == [NODE] * 50


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


def test_trailing_garbage_is_named_and_spoils_nothing_before_it(tmp_path: Path):
    objects, (said,) = damaged(tmp_path, json.dumps(NODE) + "x")
    assert objects == [NODE]
    assert "expected another object, got 'x'" in said


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


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    one=st.dictionaries(st.text(), _ANY, max_size=4),
    after=st.dictionaries(st.text(), _ANY, max_size=2),
    space=st.sampled_from(["", " ", "\n"]),
    piece=st.integers(1, 40) | st.just(1 << 20),
    indent=st.sampled_from([None, 1]),
)
def test_any_json_in_pieces_of_any_size_is_what_json_says(
    *,
    one: dict[str, Any],
    after: dict[str, Any],
    space: str,
    piece: int,
    indent: int | None,
    tmp_path_factory: pytest.TempPathFactory,
):
    item = {key: one[key] for key in one if key != "items"} | {"kind": "Node"}
    more = {key: after[key] for key in after if key not in {"items", "kind"}}
    single = {"kind": "Node", **more}
    path = tmp_path_factory.mktemp("dump") / "state.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump, "_PIECE", piece)
        for whole, expected in (
            ({"kind": "List", "items": [item], **more}, item),
            (single, single),
        ):
            path.write_text(json.dumps(whole, indent=indent) + space, encoding="utf-8")
            assert list(dump.read([str(path)])) == [expected]


def test_the_place_of_a_letter_that_is_none_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dump, "_PIECE", 4)
    with pytest.raises(UsageError) as caught:
        read(tmp_path, b'{\n"a"  :  \xff}')
    assert "line 2, column 7 (character 8): is not UTF-8 text" in caught.value.message


@pytest.mark.parametrize("tail", ["", "\n", " \n"])
def test_a_number_at_the_very_end_of_a_list_does_not_cut_it_off(tmp_path: Path, tail: str):
    text = json.dumps({"kind": "List", "items": [NODE], "count": 1}, separators=(",", ":"))
    assert read(tmp_path, text + tail) == [NODE]


def test_a_number_at_the_very_end_is_not_the_fault_of_a_file_of_no_object(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, '{"a":1}')
    assert "neither kind nor items" in caught.value.message


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


@pytest.mark.parametrize("first", ["", yaml.safe_dump(NODE) + "---\n"])
def test_of_a_yaml_list_that_is_cut_off_the_items_before_the_last_are_read(
    tmp_path: Path, first: str
):
    """Kubectl sorts keys, so `kind: List` is the first thing that a cut takes away."""
    last = {**POD, "metadata": {"name": "v", "namespace": "default"}}
    text = yaml.safe_dump({**LIST, "items": [NODE, POD, last]})
    ends = text.index("kind: List"), text.rindex("namespace") + 4, text.rindex("kind: Pod") - 9
    for end in ends:
        objects, (said,) = damaged(tmp_path, first + text[:end])
        assert objects == ([NODE] if first else []) + [NODE, POD]
        lines = (first + text[:end]).count("\n")
        assert any(f"line {line}," in said for line in (lines, lines + 1, lines + 2))


def test_a_yaml_list_that_is_cut_in_its_first_item_is_refused(tmp_path: Path):
    text = yaml.safe_dump({**LIST, "items": [NODE]})
    with pytest.raises(UsageError, match="cut off"):
        read(tmp_path, text[: text.index("kind: List")])


def test_a_cut_dump_is_a_cluster_with_a_note(tmp_path: Path):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(LIST)[:140])
    cluster = observed.cluster(dump.read([str(path)]), source=str(path))
    assert [one.name for one in cluster.nodes] == ["node-a"]
    assert cluster.notes[0].startswith(f"{path}: line 1, column ")


def test_a_dump_tells_of_claimed_gpus_as_a_server_does(tmp_path: Path):
    objects = [bare(), resource_slice(), claim("c", "gpu-0", "gpu-3")]
    typed = {"kind": "ResourceClaimList", "items": [dict(objects[2])]}
    del typed["items"][0]["kind"]
    mixed = {"kind": "List", "items": objects[:2]}
    found = observed.cluster(read(tmp_path, json.dumps(mixed), yaml.safe_dump(typed)), source="t")
    assert members(found.nodes[0].free) == (1, 2, 4, 5, 6, 7)
    assert found.nodes[0].driver == "gpu.nvidia.com"
