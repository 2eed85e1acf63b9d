"""`python -m arena_topo` is `arena-topo`."""

from arena_topo.cli import main

if __name__ == "__main__":
    main()
