"""Notes on a screen: of many alike some are shown whole, and all are named or counted."""

from __future__ import annotations

from arena_topo import notes


def ids(name: str, word: str = "x") -> str:
    return f"pod ml/{name}: annotation gpu-group makes no sense: {word!r} is no list of GPU ids"


def test_few_notes_are_shown_as_they_are():
    said = [ids("a"), ids("b"), "a level is not used", ids("c")]
    assert list(notes.shortened(said)) == [ids("a"), ids("b"), ids("c"), "a level is not used"]


def test_more_than_three_on_one_fault_are_named():
    shown = list(notes.shortened(ids(name, name * 2) for name in ("a", "b", "c", "d", "e")))
    assert shown[3:] == ["... and 2 more like the last: ml/d, ml/e"]


def test_different_faults_of_one_kind_of_object_are_kept_apart():
    faults = [
        *(
            f"configmap kube-system/n{at} data.linkType[{at}]: has {at} cells, not 8"
            for at in (1, 2)
        ),
        "configmap kube-system/n3 data.linkType: is not a list of rows",
        "configmap kube-system/n4 data.bandwidth[0][0]: -5.0 is not a number of GB/s",
        "configmap kube-system/n5 data.devices: GPU 99 of 8 is out of range",
        "configmap kube-system/n6 data.devices: is not JSON",
    ]
    assert list(notes.shortened(faults)) == faults


def test_of_very_many_ten_are_named_and_the_others_counted():
    said = [f"node n{at} is listed twice; the first one counts" for at in range(40)]
    *shown, last = notes.shortened(said)
    assert shown == said[:3]
    names = ", ".join(f"n{at}" for at in range(3, 13))
    assert last == (
        f"... and 37 more like the last: {names} and 27 more, which topology show -o json names"
    )


def test_objects_without_a_name_go_by_their_place():
    said = [f"Pod without a name (object {at}) makes no sense: it has no name" for at in range(5)]
    assert list(notes.shortened(said))[3:] == [
        "... and 2 more like the last: without a name (object 3), without a name (object 4)"
    ]


def test_a_note_that_is_repeated_is_shown_once():
    assert list(notes.shortened([ids("a")] * 5)) == [ids("a")]


def test_very_many_faults_are_counted():
    words = [f"{'abcdefghij'[at // 10]}{'abcdefghij'[at % 10]} is odd" for at in range(50)]
    shown = list(notes.shortened(words))
    assert len(shown) == notes.MOST_FAULTS + 1
    assert shown[-1] == "... and 30 other notes, which topology show -o json lists"
