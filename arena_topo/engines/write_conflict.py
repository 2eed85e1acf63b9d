"""Writes that conflict with those of others: the object has changed since it was read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from arena_topo.errors import CONFLICT, INVALID, ArenaError, ClusterError, NotFound


@contextlib.contextmanager
def unless_overtaken(*others: type[ArenaError], tests: bool = False) -> Iterator[None]:
    """Ignore a refused write if the object was deleted, or has changed since it was read.

    Also for `others`, such as AlreadyExists at a creation; with `tests` also for a JSON patch that
    tests what was read.
    """
    changed = {CONFLICT, INVALID} if tests else {CONFLICT}
    try:
        yield
    except ArenaError as error:
        if isinstance(error, ClusterError) and error.status in changed:
            return
        if not isinstance(error, (NotFound, *others)):
            raise


def attempts(most: int, message: str, *, hint: str) -> Iterator[int]:
    """Count the tries of a write that may conflict with others; ClusterError after the last."""
    yield from range(most)
    raise ClusterError(message, hint=hint)
