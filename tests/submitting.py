"""A process that submits gangs one after another, and may be killed after any of its requests.

python submitting.py KUBECONFIG NAME...         submit these; a line of JSON for each
python submitting.py KUBECONFIG --die NAME STEP submit NAME-1, NAME-2, ... each in a process of
                                                its own that ends without a word after so many
                                                requests, until one of them comes through; only
                                                each STEP-th number of requests
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.errors import ArenaError
from arena_topo.gang import submission
from arena_topo.job import MPIJob

SPACE = os.environ.get("SUBMITTING_NAMESPACE", "default")


def submitted(config: str, name: str, last: int | None = None) -> dict[str, Any]:
    """Submit one gang of two workers; what became of it."""
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    if last is not None:
        _die_after(backend, last)
    job = MPIJob(
        name=name,
        command="mpirun true",
        image="fine",
        workers=2,
        gpus=1,
        gputopology=True,
        gang=True,
        gang_timeout=60,
    )
    try:
        done = submission.submit(job, backend, namespace=SPACE)
    except ArenaError as error:
        return {"name": name, "error": f"{error.message} ({error.why})"}
    return {"name": name, "waits": done.plan.waiting}


def _die_after(backend: kubernetes.KubernetesBackend, last: int) -> None:
    pool, made = backend.api._pool, 0
    request = pool.request

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal made
        answer = request(*args, **more)
        made += 1
        if made == last:
            os._exit(9)
        return answer

    pool.request = counted


def dying(config: str, prefix: str, step: int) -> None:
    """Submit in a process of its own that dies after 1, 1 + step, ... requests."""
    for last in range(1, 1000, step):
        child = os.fork()
        if not child:
            found = submitted(config, f"{prefix}-{last}", last)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not status:
            return


def main() -> None:
    config, *names = sys.argv[1:]
    if names[0] == "--die":
        dying(config, names[1], int(names[2]))
        return
    for name in names:
        sys.stdout.write(json.dumps(submitted(config, name)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
