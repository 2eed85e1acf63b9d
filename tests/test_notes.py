"""Notes on a screen: of many alike some are shown whole, and all are named or counted."""

from __future__ import annotations

import copy
import pickle

from kube_objects import config_map, group, node, pod, seen

from arena_topo import notes
from arena_topo.notes import Note


def odd(*names: str, ids: str = "x") -> list[str]:
    """The notes on pods whose annotations are no lists of GPUs."""
    return list(seen(node(), *(pod(one, annotations=group(ids * len(one))) for one in names)).notes)


def test_few_notes_are_shown_as_they_are():
    said = [*odd("a", "b"), "a level is not used", *odd("c")]
    assert list(notes.grouped(said)) == [said[0], said[1], said[3], said[2]]


def test_more_than_three_on_one_fault_are_named():
    shown = list(notes.grouped(odd("a", "bb", "ccc", "dddd", "eeeee")))
    assert shown[3:] == ["... and 2 more like the last: default/dddd, default/eeeee"]


def test_faults_are_told_apart_by_what_is_wrong_not_by_their_words():
    broken = []
    for at, key in enumerate(("linkType", "bandwidth", "busBandwidth", "devices") * 2):
        broken.append(config_map(f"n{at}"))
        broken[-1]["data"][key] = "{" * (at + 1)
    found = seen(*(node(f"n{at}") for at in range(8)), *broken)
    assert len({one.fault for one in found.notes if isinstance(one, Note)}) == 4
    assert sorted(notes.grouped(found.notes)) == sorted(found.notes)


def test_entries_of_a_list_are_one_fault_whatever_their_index():
    pods = [pod(f"w{at}") for at in range(5)]
    for at, one in enumerate(pods):
        one["spec"]["containers"] = [*one["spec"]["containers"] * at, 7]
    found = seen(node(), *pods)
    assert "Pod w4 cannot be read: spec.containers[4]: expected a mapping" in found.notes[4]
    assert list(notes.grouped(found.notes))[3:] == ["... and 2 more like the last: w3, w4"]


def test_reasons_without_a_path_are_told_apart():
    nodes = [node(f"n{at}") for at in range(4)]
    for one in nodes:
        one["status"]["allocatable"]["nvidia.com/gpu"] = "-1"
    *shown, last = notes.grouped(seen(*nodes, node("Bad_Name")).notes)
    assert shown[3:] == ["... and 1 more like the last: n3"]
    assert last == "Node Bad_Name is ignored: no node can be called so"


def test_kinds_of_objects_are_told_apart():
    kinds = ("Node", "Pod", "MPIJob")
    wrong = [
        {"kind": kind, "metadata": {"name": name, "namespace": 7}}
        for kind in kinds
        for name in "ab"
    ]
    found = seen(node(), *wrong)
    assert len(found.notes) == 6
    assert list(notes.grouped(found.notes)) == list(found.notes)


def test_of_very_many_ten_are_named_and_the_others_counted():
    found = seen(*(node(f"n{at}") for at in range(40)), *(node(f"n{at}") for at in range(40)))
    *shown, last = notes.grouped(found.notes)
    assert shown == [f"node n{at} is listed twice; the first one counts" for at in range(3)]
    names = ", ".join(f"n{at}" for at in range(3, 13))
    assert last == (
        f"... and 37 more like the last: {names} and 27 more, which topology show -o json names"
    )


def test_a_note_that_is_repeated_is_shown_once():
    assert list(notes.grouped(odd("a") * 5)) == odd("a")


def test_a_note_keeps_its_fields_when_it_is_copied_or_passes_between_processes():
    note = Note("ml/a", "odd", "pod ml/a\x1b is {odd}")
    assert note == r"pod ml/a\x1b is {odd}"
    for same in (copy.copy(note), copy.deepcopy(note), pickle.loads(pickle.dumps(note))):
        assert (same, same.subject, same.fault) == (note, "ml/a", "odd")
