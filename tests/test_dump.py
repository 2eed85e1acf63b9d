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


NODES_AND_POD = [("Node", "node-a"), ("Pod", "w")]


def read(folder: Path, *texts: str | bytes) -> list[tuple[str, str]]:
    """The kinds and names of the objects in some dumps."""
    return [(one.kind, one.name) for one in dump.read_dumps(written(folder, *texts))]


def written(folder: Path, *texts: str | bytes) -> list[str]:
    paths = []
    for index, text in enumerate(texts):
        path = folder / f"dump-{index}"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths.append(str(path))
    return paths


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
    assert read(tmp_path, text) == NODES_AND_POD


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
    assert dump.read_document(str(path))[:2] == ({"levels": [], "beyondGBps": 100.0}, str(path))


def test_numbers_and_dates_that_are_none_are_text(tmp_path: Path):
    path = tmp_path / "net.yaml"
    long = "9" * 5000
    path.write_text(f"[2026-02-30, 0b_, {long}, !!timestamp no, 7]")
    assert dump.read_document(str(path))[0] == ["2026-02-30", "0b_", long, "no", 7]


def test_a_document_may_come_from_standard_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"levels: []")))
    assert dump.read_document("-")[:2] == ({"levels": []}, "standard input")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"levels: [", "line 2, column 1: not YAML: "),
        (b"a: 1\n---\nb: 2\n", "line 2, column 1: not YAML: "),
        (b"a: \xff", "is not UTF-8 text"),
        (b"a: &b [1]\nc: *b", "has an alias, and aliases are not read (line 2)"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_document_that_is_none_is_refused_with_its_place(
    tmp_path: Path, text: bytes, problem: str
):
    path = tmp_path / "net.yaml"
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        dump.read_document(str(path))
    assert caught.value.message.startswith(f"{path}: {problem}")
    assert "docs/fabric-file.md" in (caught.value.hint or "")


def test_a_document_that_cannot_be_read_is_refused(tmp_path: Path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError) as caught:
            dump.read_document(str(path))
        assert caught.value.message.startswith(f"{path}: cannot be read: ")


@pytest.mark.parametrize("first", [True, False])
def test_items_of_a_typed_list_get_its_kind_in_any_key_order(tmp_path: Path, *, first: bool):
    items = {"items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}
    kind = {"kind": "NodeList", "apiVersion": "v1"}
    text = json.dumps({**kind, **items} if first else {**items, **kind})
    assert read(tmp_path, text) == [("Node", "a"), ("Node", "b")]
    assert read(tmp_path, yaml.safe_dump({**kind, **items})) == [("Node", "a"), ("Node", "b")]


def test_a_kind_of_the_same_name_of_another_group_is_no_node(tmp_path: Path):
    foreign = {"kind": "Node", "apiVersion": "longhorn.io/v1beta2", "metadata": {"name": "node-a"}}
    assert read(tmp_path, json.dumps({"kind": "List", "items": [foreign, NODE]})) == [
        ("Node", "node-a")
    ]
    of_one_kind = {"kind": "NodeList", "apiVersion": "longhorn.io/v1beta2"}
    assert read(tmp_path, json.dumps(of_one_kind | {"items": [{"metadata": {"name": "a"}}]})) == []


def test_several_files_follow_one_another(tmp_path: Path):
    assert read(tmp_path, json.dumps(NODE), yaml.safe_dump(POD)) == NODES_AND_POD


def test_an_empty_list_is_no_objects(tmp_path: Path):
    assert read(tmp_path, '{"kind": "List", "items": []}') == []
    assert read(tmp_path, '{"kind": "List", "items": null}') == []


def test_things_that_are_no_objects_are_passed_over(tmp_path: Path):
    assert read(tmp_path, json.dumps({"items": [None, 7, "x", NODE]})) == NODES_AND_POD[:1]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch):
    stdin = SimpleNamespace(buffer=io.BytesIO(json.dumps(LIST).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert [one.name for one in dump.read_dumps(["-"])] == ["node-a", "w"]


@pytest.mark.parametrize("cut", [1, 20, 60, 140, len(json.dumps(LIST)) - 1])
def test_a_dump_that_is_cut_off_is_refused_with_the_position(tmp_path: Path, cut: int):
    """What else it would say is not known, so GPUs that look free might be in use."""
    said = rf"dump-1: line 1, column {cut + 1} \(byte {cut}\): the file is cut off here"
    with pytest.raises(UsageError, match=said) as caught:
        read(tmp_path, json.dumps(NODE), json.dumps(LIST)[:cut])
    assert "kubectl get nodes,pods" in (caught.value.hint or "")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("take", [lambda path: list(dump.read_dumps([path])), dump.read_document])
def test_what_windows_powershell_writes_is_refused_by_its_name(
    tmp_path: Path, encoding: str, take: Any
):
    mark = "" if encoding == "utf-16" else "\ufeff"
    (path,) = written(tmp_path, (mark + json.dumps(LIST)).encode(encoding))
    with pytest.raises(UsageError, match="dump-0: is UTF-16, not UTF-8") as caught:
        take(path)
    assert "Out-File -Encoding utf8" in (caught.value.hint or "")


def test_the_position_of_a_fault_is_right_far_into_a_large_file(tmp_path: Path):
    text = json.dumps({"kind": "List", "items": [NODE] * 50 + ["MARK"]}, indent=1)
    broken = json.dumps(NODE) + "\n" + text.replace('"MARK"', "nope")
    at = broken.index("nope")
    line, column = broken.count("\n", 0, at) + 1, at - broken.rindex("\n", 0, at)
    with pytest.raises(UsageError) as caught:
        read(tmp_path, broken)
    # What begins like a word of JSON is wrong from its second letter on.
    assert f"line {line}, column {column + 1} (byte {at + 1}): not JSON" in caught.value.message


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
        list(dump.read_dumps([str(tmp_path / "nowhere")]))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read(tmp_path, b'{"kind": "\xff\xfe"}')
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read(tmp_path, b'{"items": [{"kind": "\xff"}]}')


def test_what_follows_the_last_object_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"line 1, column \d+ .*: not JSON: invalid character"):
        read(tmp_path, json.dumps(NODE) + "x")


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    things=st.lists(st.dictionaries(st.text(), _ANY, max_size=3), max_size=4),
    space=st.sampled_from(["", " ", "\n"]),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_whatever_else_is_in_objects_they_are_read(
    *,
    things: list[dict[str, Any]],
    space: str,
    indent: int | None,
    ascii_only: bool,
    tmp_path_factory: pytest.TempPathFactory,
):
    nodes = [
        {**one, "kind": "Node", "apiVersion": "v1", "metadata": {"name": f"n{at}", "x": one}}
        for at, one in enumerate(things)
    ]
    path = tmp_path_factory.mktemp("dump") / "state.json"
    for whole in ({"items": nodes, "kind": "List"}, nodes):
        text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only) + space
        path.write_text(text * 2, encoding="utf-8")
        names = [one.name for one in dump.read_dumps([str(path)])]
        assert names == [one["metadata"]["name"] for one in nodes] * 2


def test_a_dump_that_is_nested_too_deeply_is_refused_though_its_first_nodes_are_sound(
    tmp_path: Path,
):
    with pytest.raises(UsageError, match="dump-0: is nested too deeply"):
        read(tmp_path, json.dumps(NODE) + '{"kind": "Pod", "x": ' + "[" * 100_000)


def test_a_file_of_no_object_is_refused(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, '{"a":1}')
    assert "neither kind nor items" in caught.value.message


def test_a_dump_is_a_cluster(tmp_path: Path):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(LIST))
    cluster = observed.cluster(dump.read_dumps([str(path)]), source=str(path))
    assert [one.name for one in cluster.nodes] == ["node-a"]
    assert cluster.source == str(path)


def test_a_yaml_list_that_is_cut_off_is_refused(tmp_path: Path):
    """Kubectl sorts keys, so `kind: List` is the first thing that a cut takes away."""
    text = yaml.safe_dump({**LIST, "items": [NODE]})
    with pytest.raises(UsageError, match="cut off"):
        read(tmp_path, text[: text.index("kind: List")])


def test_claimed_gpus_are_the_same_in_a_dump_and_on_a_server(tmp_path: Path):
    objects = [bare(), resource_slice(), claim("c", "gpu-0", "gpu-3")]
    typed = {"kind": "ResourceClaimList", "items": [dict(objects[2])]}
    del typed["items"][0]["kind"]
    mixed = {"kind": "List", "items": objects[:2]}
    paths = written(tmp_path, json.dumps(mixed), yaml.safe_dump(typed))
    found = observed.cluster(dump.read_dumps(paths), source="t")
    assert members(found.nodes[0].free) == (1, 2, 4, 5, 6, 7)
    assert found.nodes[0].driver == "gpu.nvidia.com"
