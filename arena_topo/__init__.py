"""Submit MPI training jobs with arena's commands, each worker placed on the best-linked GPUs.

The Python API is here: `Client`, whose methods are the verbs (`arena_topo.client`), and the values
that they take, return and raise (all in `arena_topo.values`). They are loaded at first use, as the
command line imports this package at every TAB.
"""

__version__ = "0.1.0"

_FUNCTIONS = ("machine", "picture", "presets", "read_fabric", "read_machine", "json_value")

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from arena_topo.values import *  # noqa: F403 - checkers read what that exports
else:

    def __getattr__(name):  # noqa: ANN001, ANN202 - checkers read the imports above
        # Modules of the package are looked up here too, so a name check must be enough.
        if name not in _FUNCTIONS and not name[:1].isupper():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from arena_topo import values  # noqa: PLC0415 - nothing is loaded before it is needed

        try:
            exported = getattr(values, name)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        globals()[name] = exported
        return exported


def __dir__() -> list[str]:
    from arena_topo import values  # noqa: PLC0415 - as above

    types = [name for name in vars(values) if name[0].isupper()]
    return sorted({*globals(), *_FUNCTIONS, *types})
