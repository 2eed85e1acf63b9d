"""The bandwidth that NCCL reaches in an all-reduce: for GPUs, their NICs and the pods around them.

`estimate` takes the hosts of a job as NCCL counts them and gives what nccl-tests would report as
bus bandwidth for large messages, in GB/s: a point and an 80 % range. Each regime is a form that
follows from the algorithm, times a constant fitted on measured rows (`fitted`). The forms:

    NVSwitch, ring     lanes x rate
    NVSwitch, NVLS     lanes x rate x 2(g-1)/(g+1), flat from 8 GPUs on: each GPU moves S(1 + 1/g)
    direct NVLinks     (g-1) x lanes x rate on a full mesh, else 2 x rate x disjoint rings
    bridged pairs      2 x the PCIe path: each port carries one direction of each of two rings
    PCIe               the slowest link of the best ring
    several hosts      the NICs of the chosen GPUs; on two hosts 2(n-1)/n of them, since a tree
                       sends each byte once; never more than one host reaches inside

g is the GPUs of a host, n those of the job, S the bytes that are reduced.

Files:

    several_hosts  `estimate`: the whole job
    one_host       what the GPUs of one host reach: NVLinks, PCIe, host memory
    nics, tcp      what joins hosts: RDMA, sockets
    rates          rates of the links of a machine, and what is assumed about them
    packing        disjoint rings
    estimates      the values: estimates, hosts, regimes, limits
    fitted         the constants, with their sources
"""

from arena_topo.bandwidth.estimates import BETWEEN_HOSTS as BETWEEN_HOSTS
from arena_topo.bandwidth.estimates import Algorithm as Algorithm
from arena_topo.bandwidth.estimates import Estimate as Estimate
from arena_topo.bandwidth.estimates import Host as Host
from arena_topo.bandwidth.estimates import Limit as Limit
from arena_topo.bandwidth.estimates import NotModelled as NotModelled
from arena_topo.bandwidth.estimates import Regime as Regime
from arena_topo.bandwidth.estimates import Wire as Wire
