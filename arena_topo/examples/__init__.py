"""Programs to try a cluster with: `python -m arena_topo.examples.allreduce`."""
