"""Screens of the views as they are without colours."""

from functools import partial

from arena_topo.layout import render_styles

plain = partial(render_styles, colours=False)
