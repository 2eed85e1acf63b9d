"""What NCCL says it did is read from real logs, whole or torn, and nothing more than that."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena_topo.nccl import ComplaintCause, NcclReport, Rank, RankConnection
from arena_topo.nccl.complaints import advice_for, advice_on
from arena_topo.nccl.line_parser import NcclReader

LOGS = Path(__file__).parent / "nccl"
CASES = sorted(path.stem for path in LOGS.glob("*.log"))


def read(text: str, speaker: str = "") -> NcclReport:
    reader = NcclReader()
    reader.feed_all(text.splitlines(), speaker)
    return reader.report()


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def connection(one: RankConnection) -> str:
    index = "" if one.index is None else f"/{one.index}"
    parts = [f"{one.channel:02d}{index} {one.source} -> {one.target} {one.kind}"]
    parts += [one.side] if one.side else []
    parts += [] if one.gdr is None else ["direct" if one.gdr else "through memory"]
    return ", ".join(parts)


def rank(one: Rank) -> str:
    known = {"cuda": one.device, "nvml": one.nvml, "pci": one.pci}
    told = " ".join(f"{name}={value}" for name, value in known.items() if value is not None)
    done = " complete" if one.complete else ""
    return f"{one.rank} {one.host or '?'}:{one.pid or '?'} {told}{done}"


def told(report: NcclReport) -> str:
    """A report as text, all of it."""
    lines = [f"{report.lines} lines, {report.torn} torn"]
    lines += [f"version {version}" for version in report.versions]
    for one in report.communicators:
        certain = "" if one.certain else ", not certain"
        lines.append(f"communicator {one.name or 'without a name'} of {one.size}{certain}")
        facts = {
            "channels": one.channels,
            "missing": one.missing,
            "incomplete": one.incomplete,
        }
        lines += [f"  {fact} {it}" for fact, it in facts.items() if it not in {None, ()}]
        lines += [f"  rank {rank(who)}" for who in one.ranks]
        lines += [
            f"  ring {channel}: {' '.join('...' if who is None else str(who) for who in ranks)}"
            for channel, ranks in one.rings.items()
        ]
        lines += [
            f"  search {found.channels} {found.inside}/{found.between}" for found in one.searches
        ]
        lines += [f"  {connection(found)}" for found in one.connections]
    lines += [f"unplaced {report.unplaced}"] if report.unplaced else []
    for host in report.hosts:
        lines.append(f"host {host.name or '?'}{' no ib' if host.no_ib else ''}")
        lines += [f"  bootstrap {interface}" for interface in host.bootstrap]
        lines += [f"  network {network}" for network in host.networks]
        lines += [f"  card {card}" for card in host.cards]
        lines += [f"  socket {interface}" for interface in host.sockets]
    lines += [f"set {one.name}={one.value} on {len(one.hosts)}" for one in report.settings]
    lines += [
        f"{'WARN' if one.warning else 'INFO'} {one.cause} x{one.count} at {one.where}: {one.text}"
        for one in report.complaints
    ]
    return "\n".join(lines) + "\n"


def kinds(report: NcclReport) -> set[tuple[int, int, str]]:
    found = [one for them in report.communicators for one in them.connections]
    return {(one.source, one.target, one.kind) for one in found}


@pytest.mark.parametrize("name", CASES)
def test_a_log_of_a_public_issue_is_read_unchanged(name: str) -> None:
    golden = LOGS / f"{name}.txt"
    assert told(read(log(name))) == golden.read_text(encoding="utf-8")


def test_ten_logs_and_more_are_of_different_versions_and_transports() -> None:
    reports = [read(log(name)) for name in CASES]
    versions = {version for report in reports for version in report.versions}
    ways = {kind for report in reports for _, _, kind in kinds(report)}
    assert len(CASES) >= 10
    assert len({version.split(".")[1] for version in versions}) >= 5
    assert ways >= {
        "P2P/IPC",
        "P2P/CUMEM",
        "P2P/direct pointer",
        "SHM",
        "NET/IB",
        "NET/IBext_v8",
        "NET/Socket",
        "NET/AWS Libfabric",
    }


def test_each_log_names_the_issue_it_is_from() -> None:
    for path in LOGS.glob("*.log"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(r"# [\w.-]+/[\w.-]+ (?:issue|pull request) \d+: ", first), path.name


ALL = tuple(line for name in CASES for line in log(name).splitlines())
# Of two messages in a line, which is refused whole, a cut may leave a whole one.
SINGLE = tuple(
    line for name in CASES if not name.startswith("glued") for line in log(name).splitlines()
)
WHOLE = {name: kinds(read(log(name))) for name in CASES}
EVER = set().union(*WHOLE.values())
MANY = settings(max_examples=2 * settings.default.max_examples)


@MANY
@given(st.sampled_from([case for case in CASES if not case.startswith("glued")]), st.data())
def test_a_log_cut_anywhere_claims_no_connection_that_the_whole_one_does_not(
    name: str, data: st.DataObject
) -> None:
    text = log(name)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))
    assert kinds(read(text[begin:end])) <= WHOLE[name]


@MANY
@given(st.lists(st.sampled_from(ALL), max_size=60))
def test_lines_that_are_dropped_doubled_and_mixed_claim_nothing_new(lines: list[str]) -> None:
    assert kinds(read("\n".join(lines))) <= EVER


@MANY
@given(
    st.lists(
        st.tuples(
            st.sampled_from(SINGLE),
            st.integers(0, 200),
            st.sampled_from(["", "\n", " ", "[1,3]<stdout>:", "3: "]),
        ),
        max_size=25,
    )
)
def test_lines_torn_and_glued_together_claim_nothing_new(
    pieces: list[tuple[str, int, str]],
) -> None:
    text = "".join(line[: len(line) - cut] + glue for line, cut, glue in pieces)
    assert kinds(read(text)) <= EVER


@MANY
@given(st.text(max_size=300), st.sampled_from(ALL), st.integers(0, 300))
def test_no_text_at_all_is_a_fault(noise: str, line: str, place: int) -> None:
    read(line[:place] + noise + line[place:])
    read(f"h:1:2 [0] NCCL INFO {noise}")
    read(f"h:1:2 [0] NCCL INFO Channel 00/0 : {noise} via NET/IB/0")


PREFIX = "node-1:42:77 [3] NCCL INFO "
OTHER = "node-2:43:78 [1] NCCL INFO "


def via(text: str) -> list[str]:
    report = read(text)
    found = [one for them in report.communicators for one in them.connections]
    return [connection(one) for one in found]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "[1,3]<stdout>:",
        "[1,3]<stderr>: ",
        "[prterun-host-123@1,3]<stdout>:",
        "[3] ",
        "3: ",
        "2026-01-02T03:04:05.678901234Z ",
        "[2026-01-02 03:04:05] ",
        "(RayWorkerWrapper pid=42) ",
        "\x1b[32mworker-1 | \x1b[0m",
        "Sat Nov 21 23:46:20 2026[1,3]<stdout>:",
        "[default3]:",
    ],
)
def test_tags_and_stamps_before_a_line_do_not_hide_it(before: str) -> None:
    report = read(f"{before}{PREFIX}Channel 00/0 : 3[3] -> 2[2] via P2P/CUMEM")
    assert [one.host for one in report.communicators[0].ranks] == ["node-1"]
    assert kinds(report) == {(3, 2, "P2P/CUMEM")}


def test_truncated_and_interleaved_lines_are_only_counted() -> None:
    known = f"{OTHER}Connected all rings"
    first = f"{PREFIX}Channel 00/0 : 3[3] -> 2[2] via P2P/CUMEM"
    second = f"{OTHER}Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct"
    report = read(f"{known}\n{first} {second}\n{PREFIX}Channel 00/0 : 3[3] -> {second}")
    assert (kinds(report), report.torn, report.lines) == (set(), 2, 3)
    reader = NcclReader()
    reader.feed(f"{PREFIX}Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/1", ends=False)
    assert (kinds(reader.report()), reader.report().torn) == (set(), 1)


def test_an_ambiguous_host_name_is_not_guessed() -> None:
    sent = f"{PREFIX}Channel 00/0 : 3[3] -> 2[2] via P2P/IPC"
    report = read(f"{sent}{OTHER}Channel 00/0 : 1[1] -> 0[0] via P2P/IPC")
    assert (kinds(report), report.torn) == (set(), 1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC", "00 0 -> 1 P2P/IPC"),
        ("Channel 00/1 : 0[0] -> 1[1] via P2P/CUMEM/read/CE", "00/1 0 -> 1 P2P/CUMEM"),
        ("Channel 00/0 : 0[0] -> 9[1] via P2P/MNNVL", "00/0 0 -> 9 P2P/MNNVL"),
        ("Channel 00/0 : 0[0] -> 4[4] via P2P/indirect/2[2]", "00/0 0 -> 4 P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/CE/direct", "00 0 -> 1 SHM"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct", "00 0 -> 1 SHM"),
        (
            "Channel 07/0 : 1[1] -> 0[0] [receive] via NET/IB/3/GDRDMA(PCI)/Shared",
            "07/0 1 -> 0 NET/IB, receive, direct",
        ),
        (
            "Channel 07/0 : 0[0] -> 9[1] [send] via NET/IBext_v8/3(1)/GDRDMA",
            "07/0 0 -> 9 NET/IBext_v8, send, direct",
        ),
        (
            "Ring 01 : 0 -> 4 [send] via NET/Socket/0",
            "01 0 -> 4 NET/Socket, send, through memory",
        ),
    ],
)
def test_every_way_that_nccl_names_is_read(line: str, expected: str) -> None:
    assert via(f"h:1:2 [0] NCCL INFO {line}") == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUM",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/direct",
        "Channel 00/0 : 0[0] -> 1[1] via NET/IB/0",
        "Channel 00/0 : 0[0] -> 1[1] [send] via P2P/IPC",
        "Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libf",
        "Channel 00/0 : 0[0] -> 1[1] via teleport",
        "Channel 00/0 : 7",
        "ncclCommInitRank comm 0x5 rank 2 nranks 8 cudaDev 2",
        # Python refuses to convert more than 4,300 digits.
        f"comm 0x7f rank 0 nranks 2 cudaDev 0 nvmlDev {'1' * 5000} busId 1000 - Init COMPLETE",
        f"comm 0x7f rank {'1' * 5000} nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
        f"Channel {'1' * 5000}/0 : 0[0] -> 1[1] via P2P/IPC",
        f"Channel {'1' * 5000}/02 :    0   1",
    ],
    ids=lambda line: line[:40],
)
def test_a_line_that_is_not_whole_is_counted_and_not_used(line: str) -> None:
    report = read(f"h:1:2 [0] NCCL INFO {line}")
    assert (kinds(report), report.torn) == (set(), 1)


def start(rank: int, size: int, name: str, *, pid: int, done: bool = True) -> str:
    return (
        f"n:{pid}:9 [{pid}] NCCL INFO ncclCommInitRank comm 0x{pid}{name} rank {rank} "
        f"nranks {size} cudaDev {pid} nvmlDev {pid} busId {pid + 1}000 commId 0x{name} "
        f"- Init {'COMPLETE' if done else 'START'}"
    )


def old(rank: int, size: int, *, pid: int) -> str:
    return (
        f"n:{pid}:9 [0] NCCL INFO comm 0x7f rank {rank} nranks {size} cudaDev 0 "
        f"busId {pid}000 - Init COMPLETE"
    )


def test_concurrent_communicators_are_separated_by_name() -> None:
    lines = [start(pid % 2, 2, "ab"[pid // 2], pid=pid, done=False) for pid in range(4)]
    lines += [
        f"n:{pid}:9 [{pid}] NCCL INFO Channel 00/0 : {pid % 2}[{pid}] -> {1 - pid % 2}[{pid ^ 1}] "
        f"via P2P/{'IPC' if pid < 2 else 'CUMEM'}"
        for pid in range(4)
    ]
    first, second = read("\n".join(lines)).communicators
    assert (first.name, first.matrix()) == ("0xa", {(0, 1): ("P2P/IPC",), (1, 0): ("P2P/IPC",)})
    assert (second.name, second.matrix()[1, 0]) == ("0xb", ("P2P/CUMEM",))


def test_a_late_connection_that_two_communicators_may_have_made_is_claimed_by_neither() -> None:
    lines = [start(0, 2, "a", pid=0), start(0, 4, "b", pid=0), start(1, 2, "c", pid=0)]
    lines.append("n:0:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    report = read("\n".join(lines))
    assert [one.connections for one in report.communicators] == [(), (), ()]
    assert report.unplaced == 1


def test_a_late_connection_belongs_to_the_only_possible_communicator() -> None:
    lines = [start(0, 2, "a", pid=0), start(3, 4, "b", pid=0)]
    lines.append("n:0:5 [0] NCCL INFO Channel 00/0 : 3[0] -> 1[1] via P2P/CUMEM")
    report = read("\n".join(lines))
    assert report.communicators[1].matrix() == {(3, 1): ("P2P/CUMEM",)}


def test_a_late_connection_is_of_the_communicator_in_which_the_other_gpu_has_that_name() -> None:
    lines = [
        *(start(rank, 2, "a", pid=rank) for rank in range(2)),
        *(start(rank, 2, "b", pid=2 * rank) for rank in range(2)),
        "n:0:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[2] via P2P/CUMEM",
    ]
    report = read("\n".join(lines))
    assert [len(one.connections) for one in report.communicators] == [0, 1]
    assert report.unplaced == 0


def test_ranks_without_names_are_put_together_one_communicator_after_the_other() -> None:
    lines = [old(pid - 1, 2, pid=pid) for pid in (1, 2)]
    again = read("\n".join(lines + lines)).communicators
    assert [(one.size, len(one.ranks), one.certain) for one in again] == [(2, 2, True)]


def test_ranks_without_names_of_two_groups_at_once_are_not_certain() -> None:
    lines = [old(0, 2, pid=1), old(0, 2, pid=3), old(1, 2, pid=2), old(1, 2, pid=4)]
    assert [one.certain for one in read("\n".join(lines)).communicators] == [False, False]


def test_several_ways_between_two_ranks_are_all_in_the_matrix() -> None:
    lines = [
        f"{PREFIX}Channel 0{channel}/0 : 0[0] -> 1[1] {how}"
        for channel, how in enumerate(
            ("[send] via NET/IB/0", "via P2P/IPC", "via P2P/IPC", "via SHM/direct/direct")
        )
    ]
    (one,) = read("\n".join(lines)).communicators
    assert one.matrix() == {(0, 1): ("P2P/IPC", "NET/IB", "SHM")}


def test_both_ends_of_a_connection_are_recorded() -> None:
    line = "Channel 00/0 : 1[1] -> 0[0] [{}] via NET/IB/0"
    lines = [PREFIX + line.format("send")] * 2 + [OTHER + line.format("receive")]
    found = read("\n".join(lines))
    sides = [one.side for them in found.communicators for one in them.connections]
    assert sides == ["receive", "send"]


def test_a_ring_that_old_versions_cut_is_not_whole() -> None:
    ranks = "".join(f" {rank:3d}" for rank in range(20))
    text = f"n:1:9 [0] NCCL INFO Channel 00/02 :{ranks}\n{old(0, 24, pid=1)}"
    (one,) = read(text).communicators
    assert one.rings == {0: (*range(19), None)}


def test_network_cards_have_names_those_joined_into_one_as_well() -> None:
    (host,) = read(
        f"{PREFIX}NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]={{[1] mlx5_1:1/RoCE, [2] mlx5_2:1/RoCE}} "
        f"[RO]; OOB eth0:10.0.0.1<0>"
    ).hosts
    assert [*host.cards] == ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Error: failed to extend /dev/shm/nccl-KWfVyt to 5967876 bytes", ComplaintCause.SHM_FULL),
        (
            "Error while attaching to shared memory segment /dev/shm/nccl- (size 0), error: No",
            ComplaintCause.SHM_GONE,
        ),
        ("P2P is disabled between connected GPUs 6 and 7. You can repress", ComplaintCause.P2P_OFF),
        ("failed to open CUDA IPC handle : 11 invalid argument", ComplaintCause.P2P_BROKEN),
        ("Call to connect returned Connection refused, retrying", ComplaintCause.REFUSED),
        ("Call to connect returned Connection timed out, retrying", ComplaintCause.TIMED_OUT),
        ("socketProgress: Connection closed by remote peer node1<57557>", ComplaintCause.CLOSED),
        (
            "NET/IB : Got completion from peer 10.0.0.2<55921> with status=12 opcode=1 len=0",
            ComplaintCause.IB_COMPLETION,
        ),
        ("Call to ibv_modify_qp failed with error Network is unreachable", ComplaintCause.IB_SETUP),
        (
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
            ComplaintCause.SAME_GPU,
        ),
        ("Bootstrap : no socket interface found", ComplaintCause.NO_INTERFACE),
        (
            "Call to ibv_create_cq failed with error Operation not permitted",
            ComplaintCause.IB_MEMORY,
        ),
        (
            "P2P is disabled between NVLINK connected GPUs 1 and 0. This should",
            ComplaintCause.NVLINK_OFF,
        ),
        (
            "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI",
            ComplaintCause.SAME_GPU,
        ),
        ("[Service thread] Error encountered progressing operation=Connect, res=3", None),
        ("[Service thread] shm close failed", None),
        ("[Service thread] proxy ops shm unlink failed", None),
        ("Proxy Call to rank 0 failed (Connect)", None),
        ("Cuda failure 'invalid argument'", ComplaintCause.CUDA),
        ("Cuda failure 1 'out of memory'", ComplaintCause.CUDA),
        ("something nobody has seen", None),
    ],
)
def test_a_complaint_has_a_cause_only_where_it_is_known(
    text: str, cause: ComplaintCause | None
) -> None:
    (one,) = read(f"n:1:2 [0] misc/x.cc:12 (function) NCCL WARN {text}").complaints
    assert (one.text, one.cause, one.where) == (text, cause, "misc/x.cc:12")


def test_every_cause_has_advice() -> None:
    assert all(advice_for(cause).cause is cause for cause in ComplaintCause)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Multiple Ranks are using the same GPU/Partition.", "NCCL_MULTI_RANK_GPU_ENABLE=1"),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 59000", "slices"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory", "fabric manager"),
    ],
)
def test_what_to_try_fits_what_nccl_says_and_not_only_its_class(text: str, hint: str) -> None:
    advice = advice_on(text)
    assert advice is not None
    assert hint in advice.hint


EFA = "int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, fi_cq_err_entry*, uint16_t)"


@pytest.mark.parametrize(
    "where",
    [
        f"{EFA}:46",
        "std::vector<T> ring(T (&)[8], int [2]) [with T = int]:7",
        "<unknown>:0",
        "a file with spaces.cc:12",
        "x" * 600 + "(int):1",
    ],
)
def test_a_warning_of_a_plugin_that_names_a_function_and_no_file_is_a_complaint(
    where: str,
) -> None:
    report = read(
        f"[2026-01-01 12:08:32] pod-0:194:710 [0] {where} NCCL WARN NET/OFI Request failed"
    )
    (one,) = report.complaints
    assert (one.text, one.where, one.hosts) == ("NET/OFI Request failed", where, ("pod-0",))
    assert report.torn == 0


@MANY
@given(st.text(max_size=80), st.sampled_from(["", "h:1:2 ", "h:1:2 [0] ", "[0] "]), st.text())
def test_no_warning_is_lost_for_any_prefix(noise: str, writer: str, before: str) -> None:
    report = read("\n".join(f"{before}{writer}{noise} NCCL WARN broken".splitlines()[-1:]))
    assert len(report.complaints) + report.torn == 1


def test_the_same_complaint_of_many_ranks_is_reported_once() -> None:
    lines = [
        f"n{rank}:{rank}:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by "
        f"remote peer node{rank}<{50000 + rank}>"
        for rank in range(9)
    ]
    (one,) = read("\n".join(lines)).complaints
    assert (one.count, len(one.hosts)) == (9, 9)


def test_a_line_of_information_is_a_complaint_only_if_something_is_off() -> None:
    report = read(
        f"{PREFIX}P2P is disabled between connected GPUs 1 and 0. You can repress this message\n"
        f"{PREFIX}NET/Socket : GPU Direct RDMA Disabled for HCA 0 'lo'\n"
        f"{PREFIX}Connected all rings"
    )
    assert [(one.cause, one.warning) for one in report.complaints] == [
        (ComplaintCause.P2P_OFF, False)
    ]


def test_a_log_without_a_line_of_nccl_is_silent() -> None:
    assert read("loss 0.3\nvLLM is using nccl==2.21.5").silent
    assert not read("NCCL version 2.18.3+cuda12.2").silent


def test_memory_is_bounded_by_the_number_of_facts_not_of_lines() -> None:
    lines = [f"step {step} loss 0.1" for step in range(50)]
    lines += log("cumem-2.21.5").splitlines() + log("shm-full-stamped").splitlines()
    reader = NcclReader()
    reader.feed_all(lines)
    tracemalloc.start()
    for _ in range(10):
        reader.feed_all(lines)
    once, _ = tracemalloc.get_traced_memory()
    for _ in range(20):
        reader.feed_all(lines)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < once + 100_000


def test_a_line_of_a_megabyte_is_read_to_its_end() -> None:
    assert read("x" * 1_000_000 + " NCCL INFO " + "y:" * 500_000).lines == 0
    assert read(f"{PREFIX}Channel 00/02 :{'   0' * 200_000}x").torn == 1


def test_a_host_that_only_a_rank_names_is_a_host_as_well() -> None:
    assert [host.name for host in read(log("cumem-2.21.5")).hosts] == ["kolyoz1", "kolyoz2"]


def test_a_complaint_has_the_rank_of_its_process_where_lines_leave_no_choice() -> None:
    start = "comm 0x{}0 rank {} nranks {} cudaDev 0 nvmlDev 0 busId 6000 commId 0x{} - Init START\n"
    began = "a:10:20 [0] NCCL INFO " + start.format(1, 3, 4, 1)
    warning = "a:10:25 [0] misc/socket.cc:1 NCCL WARN Net : Connection closed by remote peer\n"
    (one,) = read(began + warning).complaints
    assert (one.hosts, one.ranks) == (("a",), (3,))
    small = "a:10:21 [0] NCCL INFO " + start.format(2, 1, 2, 2)
    assert read(began + small + warning).complaints[0].ranks == (3,)
    equal = "a:10:21 [0] NCCL INFO " + start.format(2, 1, 4, 2)
    assert read(began + equal + warning).complaints[0].ranks == ()
    assert read(began + warning.replace("[0]", "[1]")).complaints[0].ranks == ()
