"""A real all-reduce that checks its sums: `mpirun -np 4 python -m arena_topo.examples.allreduce`.

Every rank prints its host and its visible GPUs; rank 0 prints one line per round. The bandwidth is
the bus bandwidth of nccl-tests, bytes / time * 2 (n - 1) / n, the load of the links for any number
of ranks. The data is in host memory: MPI moves it, not NCCL.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from array import array
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FLOAT = 4


def parse_size(text: str) -> int:
    """Read a number of bytes such as `4M`; K, M and G are powers of 1024."""
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64K, 4M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def buffer(count: int, value: float) -> Any:
    """A buffer of `count` 4-byte floats, each `value`: of NumPy if there is one."""
    try:
        import numpy as np
    except ImportError:
        return array("f", [value]) * count
    return np.full(count, value, dtype="f4")


def main() -> None:
    """Run the rounds; exit code 1 if a sum is wrong."""
    parser = argparse.ArgumentParser(prog="allreduce", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--size", type=parse_size, default=parse_size("4M"), help="bytes per rank (4M)"
    )
    parser.add_argument("--rounds", type=int, default=10, help="rounds at least (10)")
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds at least (0)")
    options = parser.parse_args()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        sys.exit(f"allreduce needs mpi4py and an MPI, as with arena-topo's extra 'mpi': {error}")

    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    host = os.environ.get("HOSTNAME") or MPI.Get_processor_name()
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    sys.stdout.write(f"rank {rank}/{ranks} on {host} GPUs {gpus or 'none'}\n")
    sys.stdout.flush()

    count = max(1, options.size // _FLOAT)
    mine, total = buffer(count, rank + 1.0), buffer(count, 0.0)
    expected = ranks * (ranks + 1) / 2
    moved = count * _FLOAT * 2 * (ranks - 1) / ranks / 1e9
    done, spent = 0, 0.0
    while True:
        world.Barrier()
        started = time.perf_counter()
        world.Allreduce([mine, MPI.FLOAT], [total, MPI.FLOAT])
        elapsed = world.allreduce(time.perf_counter() - started, op=MPI.MAX)
        done, spent = done + 1, spent + elapsed
        wrong = any(total[at] != expected for at in (0, count // 2, count - 1))
        if wrong:
            sys.stderr.write(f"rank {rank}: wrong sum {total[0]}, expected {expected}\n")
            sys.stderr.flush()
        # All ranks end together: mpirun may lose the output of a rank that ends the others.
        if world.allreduce(wrong, op=MPI.LOR):
            sys.exit(1)
        if rank == 0:
            sys.stdout.write(f"Iter #{done}: {moved / elapsed:.2f} GB/s\n")
            sys.stdout.flush()
        # All ranks see the same times, so all stop at the same round.
        if done >= options.rounds and spent >= options.seconds:
            break
    if rank == 0:
        sys.stdout.write(
            f"Total: {done} rounds, {ranks} ranks, {moved * done / spent:.2f} GB/s,"
            f" every sum {expected:g}\n"
        )


if __name__ == "__main__":
    main()
