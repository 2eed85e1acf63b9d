"""Screens of the views as they are without colours."""

from functools import partial

from arena_topo.layout import painted

plain = partial(painted, colours=False)
