"""The log of one pod as it is now, as the program wrote it."""

from arena_topo.engines import JobStatus
from arena_topo.engines.backend import Backend
from arena_topo.engines.lines import LogOptions, read_to_end


def log_of(
    backend: Backend,
    job: JobStatus,
    pod: str,
    options: LogOptions = LogOptions(),  # noqa: B008
) -> bytes:
    """All of its lines; ArenaError where it cannot be read."""
    lines = read_to_end(backend.follow(job, options, lambda source: source.pod == pod))
    return b"".join(
        (line.stamp + b" ") * options.timestamps + line.text + b"\n" * line.fed for line in lines
    )
