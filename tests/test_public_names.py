"""No public name of the package stands for two different things."""

import importlib
import pkgutil
from collections import defaultdict

import arena_topo

ALLOWED = {
    "main": "each program has one, and `python -m` finds it by this name",
    "Object": "a plain Kubernetes object; an alias, so that no module imports another for it",
    "Tell": "a function for messages; an alias as well",
    "logger": "the convention of the standard library",
}


def names() -> dict[str, list[tuple[str, object]]]:
    """Each public name, with the modules that define it themselves and what it is there."""
    defined: dict[str, list[tuple[str, object]]] = defaultdict(list)
    for info in pkgutil.walk_packages(arena_topo.__path__, "arena_topo."):
        if info.name.endswith("__main__"):
            continue
        for name, thing in vars(importlib.import_module(info.name)).items():
            if name.startswith("_") or type(thing).__name__ == "module":
                continue
            if getattr(thing, "__module__", info.name) == info.name:
                defined[name].append((info.name, thing))
    return defined


def test_no_public_name_means_two_things() -> None:
    """Imported names are the same object; constants that are equal mean the same."""
    twice = {
        name: [module for module, _ in places]
        for name, places in names().items()
        if name not in ALLOWED and any(thing != places[0][1] for _, thing in places[1:])
    }
    assert not twice
