"""Tables of nccl-tests are read as they stand, and give only a bandwidth they measured."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_lines import read_tables

from arena_topo.nccl.bandwidth_tables import (
    BadTable,
    TableReader,
    bandwidth_of_table,
    tables_in,
)

HEADER = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
RANKS = """\
#  Rank  0 Group  0 Pid  28307 on      gpu59 device  0 [0x16] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  28307 on      gpu59 device  1 [0x27] NVIDIA H100 80GB HBM3
"""
ROWS = """\
    33554432       8388608     float     sum      -1   195.40  171.72  300.51       0   195.40  171.73  300.52       0
  1073741824     268435456     float     sum      -1   3941.0  272.45  476.79       0   3940.1  272.51  476.90       0
"""  # noqa: E501
END = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 388.65
"""
TABLE = f"# Collective test starting: all_reduce_perf\n{RANKS}{HEADER}{ROWS}{END}"

OLD = """\
$ mpirun -np 2 ./build/all_reduce_perf -b 8 -e 8G -f 2 -g 1
# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) validation: 1
#   Rank  0 Pid 413820 on paidist001 device  0 [0x4f] Tesla V100-SXM2-16GB
#   Rank  1 Pid 413821 on paidist001 device  1 [0x50] Tesla V100-SXM2-16GB
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum   8142.6  131.87  230.77  2e-07   8141.2  131.89  230.81  2e-07
"""  # noqa: E501

BOTH = """\
# nThread 1 nGpus 1 minBytes 1310720000 maxBytes 1310720000 step: 1048576(bytes) validation: 1
#   Rank  0 Pid   1320 on ip-172-31-20-228 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  0 Pid   2066 on ip-172-31-22-230 device  0 [0x00] Tesla V100-SXM2-16GB
"""
"""NVIDIA/nccl-tests issue 107: two processes that each ran a test of its own."""


def rows(text: str) -> list[tuple[int, float | None, int | None]]:
    (table,) = read_tables(text.splitlines())
    return [(row.size, row.rate, row.wrong) for row in table.rows]


def why(text: str) -> str:
    (table,) = read_tables(text.splitlines())
    with pytest.raises(BadTable) as caught:
        bandwidth_of_table(table)
    return str(caught.value)


def test_a_table_is_read_with_its_ranks() -> None:
    (table,) = read_tables(TABLE.splitlines())
    assert (table.operation, table.mixed) == ("all_reduce", False)
    assert [(one.rank, one.host, one.pci) for one in table.ranks] == [
        (0, "gpu59", "0x16"),
        (1, "gpu59", "0x27"),
    ]
    assert rows(TABLE) == [(33554432, 300.51, 0), (1073741824, 476.79, 0)]


def test_a_table_of_an_old_version_is_read_by_the_names_of_its_columns() -> None:
    assert rows(OLD) == [(1073741824, 230.77, None)]
    (table,) = read_tables(OLD.splitlines())
    assert (table.operation, table.ranks[1].pci) == ("all_reduce", "0x50")


def test_the_bandwidth_is_that_of_the_largest_size_out_of_place() -> None:
    (table,) = read_tables(TABLE.splitlines())
    assert bandwidth_of_table(table) == (476.79, 1073741824)


def test_of_several_runs_of_a_size_the_lower_middle_counts() -> None:
    row = ROWS.splitlines()[1]
    (table,) = read_tables(
        (
            RANKS + HEADER + row + "\n" + row.replace("476.79", "400.00") + "\nall_reduce_perf"
        ).splitlines()
    )
    assert bandwidth_of_table(table)[0] == 400.0


def test_lines_of_nccl_and_tags_between_the_rows_do_no_harm() -> None:
    mixed = "\n".join(
        f"[1,0]<stdout>:{line}\n[1,1]<stdout>:n:1:2 [0] NCCL INFO Connected all rings"
        for line in TABLE.splitlines()
    )
    assert rows(mixed) == rows(TABLE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (RANKS + HEADER + ROWS + END, "no line tells which operation"),
        (TABLE.replace("all_reduce", "all_gather"), "all_gather was measured"),
        (TABLE.replace(RANKS, ""), "no line tells which GPUs"),
        (TABLE.replace("gpu59 device  1", "gpu60 device  1"), "2 hosts took part"),
        (TABLE.replace("[0x27]", "[0x16]"), "two ranks measured on one GPU"),
        (
            TABLE.replace(ROWS, ROWS.splitlines()[0] + "\n"),
            "its largest size is 33,554,432 bytes",
        ),
        (TABLE.replace("476.79       0", "476.79       3"), "3 of the results were wrong"),
        (TABLE.replace(RANKS, RANKS.splitlines()[0] + "\n"), "one GPU alone"),
        (TABLE.replace(ROWS, "  1073741824     268435456     float\n"), "no whole row"),
        (TABLE.replace(HEADER, HEADER + HEADER), "several tests wrote"),
        ("all_reduce_perf\n" + BOTH + HEADER + HEADER + ROWS, "several tests wrote"),
    ],
)
def test_a_table_gives_no_bandwidth_where_it_did_not_measure_one(text: str, reason: str) -> None:
    assert reason in why(text)


def test_a_log_of_transports_alone_gives_no_table() -> None:
    assert read_tables(["n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"]) == ()


def test_tables_one_after_the_other_are_two() -> None:
    assert [len(one.rows) for one in read_tables((TABLE + TABLE).splitlines())] == [2, 2]


def test_the_operation_of_a_finished_test_is_not_used_for_the_next() -> None:
    over = "# Collective test concluded: all_reduce_perf\n"
    text = TABLE + over + TABLE.replace("all_reduce", "all_gather")
    assert [one.operation for one in read_tables(text.splitlines())] == ["all_reduce", "all_gather"]


def test_the_end_of_a_test_does_not_name_one_that_has_no_beginning() -> None:
    text = TABLE + "# Collective test concluded: all_reduce_perf\n" + RANKS + HEADER + ROWS
    assert [one.operation for one in read_tables(text.splitlines())] == ["all_reduce", None]


def test_a_size_that_is_no_multiple_of_its_elements_is_a_torn_row() -> None:
    row = ROWS.splitlines()[1]
    assert rows(RANKS + HEADER + row + "\n" + row.replace("1073741824", "1073741825")) == [
        (1073741824, 476.79, 0)
    ]


def test_two_logs_at_once_do_not_mix() -> None:
    reader = TableReader()
    for line in TABLE.splitlines():
        reader.feed(line, "one")
        reader.feed(line.replace("gpu59", "gpu60"), "two")
    assert [one.mixed for one in reader.tables()] == [False, False]


@settings(max_examples=2 * settings.default.max_examples)
@given(st.integers(0, len(TABLE)), st.integers(0, len(TABLE)))
def test_a_table_cut_anywhere_has_no_row_that_the_whole_one_has_not(begin: int, end: int) -> None:
    whole = set(rows(TABLE))
    for table in read_tables(TABLE[begin:end].splitlines()):
        said = {(row.size, row.rate) for row in table.rows if row.wrong is not None}
        assert said <= {(size, rate) for size, rate, _ in whole}


@pytest.mark.parametrize("digits", ["9" * 5000, "\u00b2"], ids=["long", "power"])
@pytest.mark.parametrize(
    "number", ["      0\n", "Rank  0", "Pid  28307", "device  0", "8388608"], ids=str.strip
)
def test_a_number_that_is_none_is_no_traceback(number: str, digits: str) -> None:
    odd = re.sub(r"[0-9]+", digits, number)
    assert number in TABLE
    read_tables(TABLE.replace(number, odd).splitlines())


def test_rates_in_json_that_were_not_measured_leave_the_other_rows():
    # src/util.cu of nccl-tests: `nan` is a string, and what is only measured in place null.
    rows = [
        {"size": 0, "out_of_place": {"bus_bw": "nan"}, "in_place": {"bus_bw": "nan"}},
        {"size": 1 << 29, "out_of_place": None, "in_place": {"bus_bw": 470.0}},
        {"size": 1 << 30, "out_of_place": {"bus_bw": 476.8}, "in_place": {"bus_bw": 476.9}},
    ]
    (table,) = tables_in(json.dumps({"args": ["./all_reduce_perf"], "results": rows}))
    assert [row.rate for row in table.rows] == [None, None, 476.8]


def test_a_header_that_is_mixed_up_with_another_line_begins_no_rows():
    tables = read_tables((TABLE + TABLE.replace("busbw #wrong", "busbw#wrong")).splitlines())
    assert [len(table.rows) for table in tables] == [2, 0]
