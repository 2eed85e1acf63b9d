"""What NCCL did is held against the plan: what differs, why as far as lines say it, what to try."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cube_mesh import HGX, PCIE, V100
from nccl_lines import joined, made, read_tables, spoken, table_of, through
from replacing import replace

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.errors import ArenaError
from arena_topo.manifests import PlacementForecast
from arena_topo.nccl.comparison import (
    Planned,
    RelativePlace,
    WorkerSlot,
    measured_sets,
    recorded_plan,
)
from arena_topo.nccl.findings import Aspect, Finding, NcclComparison, compare_with_plan
from arena_topo.nccl.line_parser import NcclReader
from arena_topo.topology import Cluster, GPUSet, Machine, Node, NodeName


def plan(
    *seats: tuple[str, tuple[int, ...]],
    slots: int = 1,
    machine: Machine = V100,
    exact: bool = True,
    **said: Any,
) -> Planned:
    """Workers by node and GPUs, on V100 machines unless said otherwise."""
    usual: dict[str, Any] = {"bus_bandwidth": 80.0, "usable": 80.0}
    return Planned(
        forecast=PlacementForecast(
            state="placed", guarantee="gpus" if exact else "node", **(usual | said)
        ),
        workers=tuple(
            WorkerSlot(worker=index, pod=f"demo-worker-{index}", node=node, gpus=gpus)
            for index, (node, gpus) in enumerate(seats)
        ),
        slots=slots,
        machines={node: machine for node, _gpus in seats},
    )


def read(lines: list[str], planned: Planned | None) -> NcclComparison:
    """Comparison; whatever a finding rests on is to be found in the lines."""
    reader = NcclReader()
    reader.feed_all(lines)
    found = compare_with_plan(reader.report(), planned)
    for one in found.findings:
        assert one.why.lines, one
        assert all(any(line in each for each in lines) for line in one.why.lines), one
    return found


def only(found: NcclComparison) -> Finding:
    (one,) = found.findings
    return one


QUAD = (0, 3, 2, 1)
"""Four GPUs of a DGX-1 V100 in the order of an NVLink ring."""


def test_a_job_whose_ranks_are_joined_as_planned_agrees():
    found = read(spoken(4, 4, through("P2P/IPC/read", "", 4)), plan(("a", QUAD), slots=4))
    assert found.findings == ()
    assert found.agrees
    assert found.observed.joined == {(RelativePlace.POD, "P2P/IPC"): 4}
    assert {rank: seat.worker for rank, seat in found.observed.workers.items()} == dict.fromkeys(
        range(4), 0
    )


def test_a_log_without_connections_does_not_agree_with_the_plan():
    found = read(["NCCL version 2.18.3+cuda12.2"], plan(("a", QUAD), slots=4))
    assert not found.agrees
    assert found.observed.main.ranks == ()


def test_one_gpu_pods_of_a_node_that_meet_over_the_network_lack_a_common_host():
    planned = plan(("a", (0,)), ("a", (3,)), usable=5.66, regime="tcp")
    one = only(read(spoken(2, 1, through("", "NET/Socket/0", 1)), planned))
    assert one.kind is Aspect.TRANSPORT
    assert one.planned == "NVLink"
    assert one.actual == "NET/Socket"
    assert set(one.pairs) == {(0, 1), (1, 0)}
    assert one.expected
    assert one.why.cause == (
        "the pods have host names of their own, and NCCL takes each name for a machine"
        " (demo-worker-0, demo-worker-1)"
    )
    assert one.why.hint is not None
    assert "--pod-shape fused" in one.why.hint
    assert one.why.lines == ("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0",)


def test_what_the_plan_has_counted_with_is_no_surprise():
    lines = spoken(2, 1, through("", "NET/Socket/0", 1))
    expected = plan(("a", (0,)), ("a", (3,)), usable=5.66, regime="tcp")
    assert read(lines, expected).agrees
    surprising = plan(("a", (0,)), ("a", (3,)), usable=76.8, regime="nvlink-mesh")
    assert not read(lines, surprising).agrees
    assert not only(read(lines, surprising)).expected


def test_pods_that_share_a_host_id_and_still_use_the_network_have_no_cause_in_the_lines():
    lines = spoken(2, 1, through("", "NET/Socket/0", 1), settings=["NCCL_HOSTID=a/team/demo"])
    one = only(read(lines, plan(("a", (0,)), ("a", (3,)), usable=5.66, regime="tcp")))
    assert one.why.cause is None
    assert not one.expected
    assert one.why.lines[-1] == "NCCL_HOSTID set by environment to a/team/demo."


@pytest.mark.parametrize(
    ("settings", "more", "cause"),
    [
        ((), (), None),
        (
            ("NCCL_P2P_DISABLE=1",),
            (),
            "the environment asks for it: NCCL_P2P_DISABLE",
        ),
        (("NCCL_P2P_DISABLE=0",), (), None),
        (("NCCL_P2P_LEVEL=LOC",), (), "the environment asks for it: NCCL_P2P_LEVEL"),
        (("NCCL_P2P_LEVEL=SYS",), (), None),
        (
            (),
            ("P2P is disabled between connected GPUs 1 and 0.",),
            "the driver or NCCL found that these GPUs cannot reach each other directly",
        ),
    ],
)
def test_shared_memory_in_place_of_nvlink_has_the_cause_that_lines_tell(
    settings: tuple[str, ...], more: tuple[str, ...], cause: str | None
):
    lines = spoken(4, 4, through("SHM/direct/direct", "", 4), settings=settings, more=more)
    one = only(read(lines, plan(("a", QUAD), slots=4)))
    assert (one.kind, one.planned, one.actual) == (Aspect.TRANSPORT, "NVLink", "SHM")
    assert one.why.cause == cause
    assert len(one.pairs) == 4


def test_shared_memory_between_gpus_without_nvlink_is_no_finding():
    lines = spoken(4, 4, through("SHM/direct/direct", "", 4))
    found = read(lines, plan(("a", (0, 1, 4, 5)), slots=4, machine=PCIE))
    assert found.findings == ()


def test_a_quad_of_which_two_neighbours_have_no_nvlink_may_stage_there():
    """GPUs 0 and 5 of a DGX-1 have no NVLink; 0 and 3 have two."""
    lines = spoken(2, 2, through("SHM/direct/direct", "", 2))
    assert read(lines, plan(("a", (0, 5)), slots=2)).findings == ()
    assert only(read(lines, plan(("a", (0, 3)), slots=2))).kind is Aspect.TRANSPORT


def test_where_the_kubelet_picks_the_gpus_nvlink_is_planned_only_if_all_pairs_have_it():
    lines = spoken(2, 2, through("SHM/direct/direct", "", 2))
    assert read(lines, plan(("a", ()), slots=2, exact=False)).findings == ()
    assert read(lines, plan(("a", (0, 3)), slots=2, exact=False)).findings == ()
    everywhere = plan(("a", ()), slots=2, exact=False, machine=HGX)
    assert only(read(lines, everywhere)).planned == "NVLink"


def test_the_network_between_gpus_of_one_pod_is_always_a_finding():
    lines = spoken(2, 2, lambda *_: "NET/Socket/0")
    one = only(read(lines, plan(("a", (0, 5)), slots=2)))
    assert (one.kind, one.planned, one.actual) == (Aspect.TRANSPORT, "one pod", "NET/Socket")


def test_a_search_of_nccl_with_less_than_nvlink_is_reported():
    lines = spoken(4, 4, through("P2P/IPC/read", "", 4), search="PHB/PIX")
    one = only(read(lines, plan(("a", QUAD), slots=4)))
    assert one.kind is Aspect.TRANSPORT
    assert one.actual.startswith("PHB inside the machine")
    fine = spoken(4, 4, through("P2P/IPC/read", "", 4), search="NVL/PIX")
    assert read(fine, plan(("a", QUAD), slots=4)).findings == ()


# ---------------------------------------------------------------- between nodes


def two_nodes(**said: Any) -> Planned:
    usual: dict[str, Any] = {"bus_bandwidth": 12.5, "usable": 12.5, "tier": "leaf"}
    usual["regime"] = "rdma"
    return plan(("a", QUAD), ("b", QUAD), slots=4, **(usual | said))


def test_tcp_where_more_was_planned_names_the_device_that_pods_lack():
    lines = spoken(8, 4, through("P2P/IPC/read", "NET/Socket/0", 4))
    one = only(read(lines, two_nodes()))
    assert one.kind is Aspect.NETWORK
    assert one.planned == "12.5 GB/s between nodes (leaf)"
    assert one.actual == "NET/Socket, which is TCP"
    assert one.why.cause == ("NCCL finds no InfiniBand or RoCE device in demo-worker-0 and 1 more")
    assert one.why.hint is not None
    assert "--rdma" in one.why.hint
    assert set(one.pairs) == {(3, 4), (7, 0)}


def test_tcp_is_what_a_plan_over_an_unknown_network_counts_with():
    lines = spoken(8, 4, through("P2P/IPC/read", "NET/Socket/0", 4))
    found = read(lines, two_nodes(bus_bandwidth=1.25, usable=1.25, regime="tcp", tier=None))
    assert found.findings == ()
    assert found.agrees


@pytest.mark.parametrize(
    ("setting", "named"),
    [("NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE"), ("NCCL_NET=Socket", "NCCL_NET")],
)
def test_tcp_by_a_variable_is_reported_with_the_variable(setting: str, named: str):
    lines = spoken(8, 4, through("P2P/IPC/read", "NET/Socket/0", 4), settings=[setting])
    one = only(read(lines, two_nodes()))
    assert one.why.cause == f"the environment asks for it: {named}"
    assert one.why.hint == f"leave out {named}"


def test_rdma_through_host_memory_is_reported():
    lines = spoken(8, 4, through("P2P/IPC/read", "NET/IB/0", 4), network="IB")
    one = only(read(lines, two_nodes()))
    assert one.kind is Aspect.NETWORK
    assert one.why.cause is None
    direct = spoken(8, 4, through("P2P/IPC/read", "NET/IB/0/GDRDMA", 4), network="IB")
    assert read(direct, two_nodes()).findings == ()


def test_shared_memory_between_two_planned_nodes_shows_that_they_are_one():
    lines = spoken(8, 4, through("P2P/IPC/read", "SHM/direct/direct", 4))
    one = only(read(lines, two_nodes()))
    assert (one.kind, one.planned) == (Aspect.PLACEMENT, "two nodes")


@pytest.mark.parametrize(
    ("interface", "setting"), [("docker0", "docker0"), ("docker0", "docker"), ("lo", "=lo")]
)
def test_a_local_interface_is_reported_with_the_variable_that_selects_it(interface, setting):
    lines = spoken(
        8,
        4,
        through("P2P/IPC/read", "NET/Socket/0", 4),
        interface=interface,
        settings=[f"NCCL_SOCKET_IFNAME={setting}"],
    )
    found = read(lines, two_nodes(bus_bandwidth=1.25, regime="tcp"))
    one = only(found)
    assert one.kind is Aspect.SETTINGS
    assert one.actual == f"interface {interface} on demo-worker-0 and 1 more"
    assert one.why.cause == f"the environment asks for it: NCCL_SOCKET_IFNAME={setting}"
    unasked = spoken(8, 4, through("P2P/IPC/read", "NET/Socket/0", 4), interface="docker0")
    assert only(read(unasked, two_nodes(bus_bandwidth=1.25, regime="tcp"))).why.cause is None


def test_a_ring_that_crosses_between_nodes_too_often_is_reported():
    lines = spoken(
        4,
        1,
        lambda *_: "NET/IB/0/GDRDMA",
        network="IB",
        ring=[0, 1, 2, 3],
    )
    planned = plan(
        ("a", (0,)), ("b", (0,)), ("a", (3,)), ("b", (3,)), bus_bandwidth=12.5, usable=12.5
    )
    one = only(read(lines, planned))
    assert one.kind is Aspect.ORDER
    assert one.planned == "2 hops between nodes"
    assert one.actual == "4 in the ring of channel 0"
    # Of several rings that differ, the one with most crossings is named.
    [first] = [line for line in lines if "Channel 00/02 :" in line]
    differ = [
        line if line != first else re.sub(" 0 .*", " 0    2    1    3", line) for line in lines
    ]
    assert only(read(differ, planned)).actual == "4 in the ring of channel 1"


# ---------------------------------------------------------------- who spoke


def test_ranks_that_are_silent_are_named_and_nothing_is_claimed_of_them():
    lines = spoken(
        8, 4, through("P2P/IPC/read", "NET/IB/0/GDRDMA", 4), network="IB", silent=range(4, 8)
    )
    one = only(read(lines, two_nodes()))
    assert one.kind is Aspect.RANKS
    assert one.actual == "no lines of ranks 4-7"
    assert one.why.hint is not None
    assert "--nccl-debug" in one.why.hint


def test_ranks_that_did_not_get_done_are_named():
    lines = spoken(4, 4, through("P2P/IPC/read", "", 4), complete=False)
    one = only(read(lines, plan(("a", QUAD), slots=4)))
    assert (one.kind, one.ranks) == (Aspect.RANKS, (0, 1, 2, 3))


def test_fewer_ranks_than_planned_are_reported():
    lines = spoken(2, 4, through("P2P/IPC/read", "", 4))
    one = only(read(lines, plan(("a", QUAD), slots=4)))
    assert (one.kind, one.planned, one.actual) == (
        Aspect.RANKS,
        "4 ranks",
        "2 in the largest communicator",
    )


def test_several_versions_in_one_job_are_reported():
    lines = [
        *spoken(4, 4, through("P2P/IPC/read", "", 4)),
        "NCCL version 2.19.3+cuda12.3",
    ]
    one = only(read(lines, plan(("a", QUAD), slots=4)))
    assert one.actual == "2.18.3+cuda12.2, 2.19.3+cuda12.3"


def test_what_nccl_warns_of_comes_with_cause_and_advice():
    warning = (
        "demo-worker-0:100:200 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed :"
        " No space left on device"
    )
    found = read(
        [*spoken(4, 4, through("P2P/IPC/read", "", 4)), warning], plan(("a", QUAD), slots=4)
    )
    one = only(found)
    assert one.kind is Aspect.WARNING
    assert one.why.hint is not None
    assert "--share-memory" in one.why.hint


def test_hosts_without_the_names_of_pods_leave_only_the_numbers_of_ranks():
    lines = spoken(
        8,
        4,
        through("P2P/IPC/read", "NET/IB/0/GDRDMA", 4),
        network="IB",
        host=lambda pod: f"gpu{pod:02d}",
    )
    found = read(lines, two_nodes())
    assert found.observed.by_number
    assert found.agrees
    named = read(
        spoken(8, 4, through("P2P/IPC/read", "NET/IB/0/GDRDMA", 4), network="IB"), two_nodes()
    )
    assert not named.observed.by_number


def test_on_the_network_of_their_nodes_ranks_are_known_by_the_nodes_names():
    lines = spoken(
        8,
        4,
        through("P2P/IPC/read", "NET/IB/0/GDRDMA", 4),
        network="IB",
        host=lambda pod: "ba"[pod],
    )
    found = read(lines, two_nodes())
    assert {rank: seat.node for rank, seat in found.observed.workers.items()} == {
        rank: "ba"[rank // 4] for rank in range(8)
    }


def test_without_a_plan_only_nccls_own_word_counts():
    lines = spoken(8, 4, through("P2P/IPC/read", "NET/Socket/0", 4))
    found = read(lines, None)
    assert found.findings == ()
    assert not found.agrees
    assert found.observed.joined == {
        (RelativePlace.HOST, "P2P/IPC"): 6,
        (RelativePlace.HOSTS, "NET/Socket"): 2,
    }


# ---------------------------------------------------------------- the plan


def status(forecast: PlacementForecast | None, *pods: str) -> JobStatus:
    return JobStatus(
        uid="1",
        name="demo",
        namespace="team",
        phase=Phase.RUNNING,
        created=0.0,
        forecast=forecast,
        instances=tuple(
            Instance(name=pod, status="Running", created=0.0, worker=index)
            for index, pod in enumerate(pods)
        ),
    )


def test_the_plan_is_what_is_recorded_on_the_job():
    forecast = PlacementForecast(
        state="placed",
        workers=((0, "a", (0, 3)), (1, "b", (1, 2))),
        bus_bandwidth=12.5,
        usable=12.5,
        tier="leaf",
        guarantee="gpus",
    )
    node = Node(name=NodeName("a"), machine=V100, free=GPUSet(0))
    found = recorded_plan(status(forecast, "demo-worker-0"), 2, Cluster(nodes=(node,)))
    assert found is not None
    assert found.ranks == 4
    assert found.nodes == 2
    assert found.exact
    assert [slot.pod for slot in found.workers] == ["demo-worker-0", "demo-worker-1"]
    assert found.machines == {"a": V100}
    assert recorded_plan(status(None), 2) is None
    assert recorded_plan(status(replace(forecast, state="waiting")), 2) is None


# ---------------------------------------------------------------- bandwidths


def table(lines: list[str], planned: Planned) -> dict[tuple[int, ...], float]:
    return dict(measured_sets(read_tables(lines), read(lines, planned).observed, planned).table)


def test_a_table_is_of_the_gpus_that_were_planned_and_measured():
    lines = [*spoken(4, 4, through("P2P/IPC/read", "", 4)), *table_of(4, 4, 82.1)]
    assert table(lines, plan(("a", QUAD), slots=4)) == {(0, 1, 2, 3): 82.1}


def test_of_two_tests_of_one_set_the_lower_value_counts():
    one, other = table_of(4, 4, 82.1), table_of(4, 4, 79.9)
    for lines in ([*one, *other], [*other, *one]):
        assert table(lines, plan(("a", QUAD), slots=4)) == {(0, 1, 2, 3): 79.9}


@pytest.mark.parametrize(
    ("lines", "planned", "why"),
    [
        (spoken(4, 4, through("P2P/IPC/read", "", 4)), plan(("a", QUAD), slots=4),
         "there is no table of nccl-tests in these lines"),
        (table_of(2, 2, 40.0), plan(("a", QUAD), slots=4),
         "2 of the 4 GPUs of the workers took part, and no line tells which"),
        (table_of(4, 4, 40.0), plan(("a", QUAD), slots=4, exact=False),
         "the kubelet has picked the GPUs, and no line tells their indexes"),
        (table_of(8, 4, 10.0), two_nodes(), "2 hosts took part"),
        (table_of(4, 4, 40.0, host=lambda _: "elsewhere"), two_nodes(),
         "host elsewhere is no pod of the job"),
        (table_of(4, 4, 40.0, size=1 << 20), plan(("a", QUAD), slots=4),
         "its largest size is 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_what_is_not_measured_or_not_of_known_gpus_gives_no_table(
    lines: list[str], planned: Planned, why: str
):
    with pytest.raises(ArenaError) as caught:
        table(lines, planned)
    assert caught.value.why is not None
    assert caught.value.why.startswith(why)
    assert caught.value.hint is not None
    assert "all_reduce_perf" in caught.value.hint


def test_the_gpus_of_a_whole_machine_are_known_without_a_guarantee():
    planned = plan(("a", tuple(range(8))), slots=8, exact=False)
    assert table(table_of(8, 8, 130.0), planned) == {tuple(range(8)): 130.0}
    exact = plan(("a", tuple(range(8))), slots=8)
    assert table(table_of(8, 8, 130.0), exact) == {tuple(range(8)): 130.0}


def test_emulated_gpus_are_never_measured():
    with pytest.raises(ArenaError, match="emulated"):
        table(table_of(4, 4, 82.1), plan(("a", QUAD), slots=4, emulated=True))


# ---------------------------------------------------------------- several communicators


def test_connections_of_communicators_of_the_same_processes_are_compared_together():
    lines = [*made(4, ["a", "b"]), *joined(4, "P2P/CUMEM")]
    found = read(lines, plan(("a", QUAD), slots=4))
    assert found.agrees
    assert found.observed.joined == {(RelativePlace.POD, "P2P/CUMEM"): 4}
    assert found.observed.report.unplaced == 0


def test_a_connection_that_joins_other_processes_in_another_communicator_is_not_compared():
    lines = [*made(2, ["a"], pods=[0, 1]), *made(2, ["b"], pods=[0, 2])]
    lines += joined(2, "NET/Socket/0", pods=[0, 1])[:1]
    found = read(lines, plan(("a", (0,)), ("b", (0,)), ("c", (0,))))
    assert not found.observed.joined
    assert not found.agrees
    assert found.observed.report.unplaced == 1


def test_another_communicator_that_did_not_get_done_is_named():
    lines = [*made(2, ["a"]), *joined(2, "P2P/CUMEM"), *made(2, ["b"], done=False)]
    one = only(read(lines, None))
    assert one.kind is Aspect.RANKS
    assert one.actual == 'no "Init COMPLETE" of ranks 0-1 in communicator 0xb (of 2)'


# ---------------------------------------------------------------- what NCCL's source tells of it


@pytest.mark.parametrize("tier", [None, "rdma", "nvlink"])
def test_nvlink_between_machines_is_not_taken_for_one_machine(tier: str | None):
    planned = plan(("a", QUAD), ("b", QUAD), slots=4, machine=HGX, tier=tier)
    found = read(spoken(8, 4, through("P2P/MNNVL", "P2P/MNNVL", 4)), planned)
    assert found.findings == ()
    assert found.agrees


def by_end(sent: str, received: str, **said: Any) -> list[str]:
    """Two nodes over RDMA, whose lines differ by end."""
    lines = spoken(2, 1, through("", "NET/IB/0", 1), network="IB", **said)
    ends = {"[send]": sent, "[receive]": received}
    return [
        line + next((more for end, more in ends.items() if f"{end} via" in line), "")
        for line in lines
    ]


def test_rdma_with_gpu_direct_at_one_end_is_what_nccl_chose():
    planned = plan(("a", (0,)), ("b", (0,)))
    for ends in (("", "/GDRDMA"), ("/GDRDMA", "/GDRDMA")):
        assert read(by_end(*ends), planned).findings == ()
    neither = only(read(by_end("", ""), planned))
    assert neither.actual == "RDMA through the host's memory (no GDRDMA in the lines)"
    off = only(read(by_end("", "", settings=["NCCL_NET_GDR_LEVEL=LOC"]), planned))
    assert off.why.cause == "the environment asks for it: NCCL_NET_GDR_LEVEL"


OFF = (
    "demo-worker-0:100:200 [0] graph/paths.cc:315 NCCL WARN P2P is disabled between NVLINK"
    " connected GPUs 1 and 0. This should not be the case given their connectivity, and is"
    " probably due to a hardware issue."
)


def test_nccls_own_word_on_nvlink_that_is_off_comes_before_ours():
    (one,) = read([OFF], None).findings
    assert "hardware issue" in str(one.why.cause)
    assert "nvidia-smi nvlink -s" in str(one.why.hint)
    assert "NCCL_IGNORE_DISABLED_P2P" in str(one.why.hint)
    lines = spoken(4, 4, through("SHM/direct/direct", "", 4))
    staged = only(read([*lines, OFF], plan(("a", QUAD), slots=4)))
    assert staged.kind is Aspect.TRANSPORT
    assert "hardware issue" in str(staged.why.cause)


def test_two_complaints_of_one_class_have_their_own_advice():
    lines = [
        "a:10:25 [0] init.cc:1 NCCL WARN Multiple Ranks are using the same GPU/Partition. Set X.",
        "a:11:25 [0] init.cc:2 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on it",
    ]
    first, second = read(lines, None).findings
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1" in str(first.why.hint)
    assert "LOCAL_RANK" in str(second.why.hint)


# ---------------------------------------------------------------- never more than lines say


def test_pods_of_one_host_name_are_not_distinguished_by_names():
    lines = spoken(2, 1, through("", "NET/Socket/0", 1), host=lambda _: "a")
    one = only(read(lines, plan(("a", (0,)), ("a", (3,)), usable=76.8, regime="nvlink-mesh")))
    assert one.kind is Aspect.TRANSPORT
    assert one.why.cause is None
    assert one.why.hint == "--pod-shape fused makes one pod of the workers of a node"


def test_a_complaint_about_a_card_is_the_cause_of_staged_rdma_and_reported_once():
    said = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    lines = spoken(8, 4, through("P2P/IPC", "NET/IB/0", 4), network="IB", more=[said])
    one = only(read(lines, two_nodes()))
    assert one.kind is Aspect.NETWORK
    assert one.why.cause == f"NCCL says: {said}"
    assert one.why.lines == (said,)


def test_an_unused_card_without_gpu_direct_is_no_finding():
    said = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    lines = spoken(8, 4, through("P2P/IPC", "NET/IB/1/GDRDMA", 4), network="IB", more=[said])
    assert read(lines, two_nodes()).findings == ()


def test_a_single_host_may_use_the_interface_that_leads_nowhere():
    lines = spoken(4, 4, through("P2P/IPC", "", 4), interface="docker0")
    assert read(lines, plan(("a", QUAD), slots=4)).findings == ()


def test_the_network_between_nodes_of_an_nvlink_domain_is_reported():
    lines = spoken(8, 4, through("P2P/CUMEM", "NET/IB/0/GDRDMA", 4), network="IB")
    one = only(read(lines, two_nodes(tier="nvlink", machine=HGX)))
    assert (one.kind, one.planned, one.actual) == (
        Aspect.NETWORK,
        "NVLink between the nodes",
        "NET/IB",
    )
    assert "IMEX" in str(one.why.hint)


@pytest.mark.parametrize("tier", ["leaf", "nvlink"])
def test_p2p_between_nodes_is_of_one_machine_unless_nvlink_joins_them(tier: str):
    lines = spoken(8, 4, through("P2P/CUMEM", "P2P/CUMEM", 4))
    found = read(lines, two_nodes(tier=tier, machine=HGX))
    assert [one.kind for one in found.findings] == ([] if tier == "nvlink" else [Aspect.PLACEMENT])


@pytest.mark.parametrize("word", ["NVL", "NVB", "C2C", "LOC"])
def test_paths_over_nvlink_alone_are_as_planned(word: str):
    lines = spoken(4, 4, through("P2P/IPC", "", 4), search=f"{word}/PIX")
    assert read(lines, plan(("a", QUAD), slots=4)).findings == ()


def test_of_more_ranks_than_planned_those_that_no_name_places_have_no_seat():
    lines = spoken(8, 4, through("P2P/IPC", "", 8), host=lambda pod: f"gpu{pod}")
    found = read(lines, plan(("a", QUAD), slots=4))
    assert found.observed.workers == {}
    assert {place for place, _kind in found.observed.joined} == {
        RelativePlace.HOST,
        RelativePlace.HOSTS,
    }


def test_ranks_that_go_round_between_pods_have_the_gpus_of_their_turn():
    """Rank 2 is the second of the first pod: GPU 3, not the first once more."""
    host = {0: 0, 1: 1, 2: 0, 3: 1}
    lines = [
        f"demo-worker-{host[rank]}:{rank}:9 [{rank // 2}] NCCL INFO comm 0x{rank} rank {rank}"
        f" nranks 4 cudaDev {rank // 2} busId 1000 commId 0x5 - Init COMPLETE"
        for rank in range(4)
    ]
    lines.append(
        "demo-worker-0:0:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[1] via SHM/direct/direct"
    )
    linked, apart = ("a", (0, 3)), ("a", (0, 5))
    assert only(read(lines, plan(linked, ("b", (0, 3)), slots=2))).planned == "NVLink"
    assert read(lines, plan(apart, ("b", (0, 3)), slots=2)).findings == ()


def test_that_gpus_are_emulated_is_part_of_the_plan():
    forecast = PlacementForecast(
        state="placed", workers=((0, "a", (0, 3)),), bus_bandwidth=1.0, usable=1.0, emulated=True
    )
    for emulated in (True, False):
        found = recorded_plan(status(replace(forecast, emulated=emulated)), 2)
        assert found is not None
        assert found.forecast.emulated is emulated


def test_rdma_is_not_claimed_of_a_plugin():
    via = through("P2P/IPC", "NET/AWS Libfabric/0", 4)
    one = only(read(spoken(8, 4, via, network="AWS Libfabric"), two_nodes()))
    assert one.actual == "NET/AWS Libfabric, no GDRDMA in the lines"
    assert one.why.cause is None


CLOSED = (
    "b:10:25 [0] misc/socket.cc:1 NCCL WARN Call to recv failed : Broken pipe",
    "a:10:25 [0] misc/socket.cc:2 NCCL WARN Net : Connection closed by remote peer c.x<5001>",
)


def test_warnings_come_before_lines_of_information():
    lines = [
        "a:10:25 [0] NCCL INFO Could not enable P2P between dev 0(=6000) and dev 1(=7000)",
        "a:10:25 [0] init.cc:1 NCCL WARN Mismatched NCCL version detected",
    ]
    assert [one.actual.split()[0] for one in read(lines, None).findings] == ["Mismatched", "Could"]


def test_two_texts_of_one_cause_are_separate_complaints():
    second, first = read(list(CLOSED), None).findings
    assert first.actual == "Net : Connection closed by remote peer c.x<5001>"
    assert second.actual == "Call to recv failed : Broken pipe"
    assert (first.hosts, second.hosts) == (("a",), ("b",))


def test_that_another_rank_ended_is_not_claimed_where_no_line_says_so():
    for one in read(list(CLOSED), None).findings:
        assert "ended" not in f"{one.why.cause} {one.why.hint}"
        assert "rank:N" not in str(one.why.hint)


def test_what_nccl_warns_of_comes_before_lines_that_are_missing():
    lines = [*spoken(8, 4, through("P2P/IPC", "NET/IB/0/GDRDMA", 4), silent=[6, 7]), CLOSED[1]]
    assert [one.kind for one in read(lines, None).findings] == [Aspect.WARNING, Aspect.RANKS]
