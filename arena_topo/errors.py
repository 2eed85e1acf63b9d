"""The error tree: each error has a sentence for a person and an exit code for a script.

    ArenaError                  1  anything that stopped the work
    ├─ UsageError               2  the request cannot be read, or contradicts itself
    │  └─ InvalidJob            2  a field of the job is wrong (arena's own text if it has one)
    │     └─ InvalidValue       2  a text is no quantity, no variable, no claim ...
    ├─ UnreadableTopology       1  a matrix, ConfigMap or dump is invalid; says where
    ├─ solver.Unplaceable     3|5  no set of GPUs fits: not now (3), never on this cluster (5)
    ├─ NotPossible              1  the state of the job does not allow this
    ├─ NotNow                   3  a gang was to start, and has to wait
    ├─ NoGain                   0  a gang runs on, as a new placement would be no faster
    ├─ NotFound                 1  the job, pod, node or machine named does not exist
    │  └─ JobNotFound           1  no job has this name
    ├─ AlreadyExists            1  the name is taken
    │  └─ JobExists             1  a job has this name already
    ├─ JobDeleted               1  the job was deleted meanwhile
    ├─ JobFailed                *  the job ended badly; carries the launcher's own exit code
    ├─ ClusterError             1  the API server said no, or did not answer
    │  └─ AccessDenied          4  not authenticated, or not allowed
    └─ TimedOut                 6  a deadline has passed

Only `cli.main` turns these into exits. Nothing below it prints, logs or exits.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""As in `typing`, which takes as long to import as all the rest of a completion."""

if TYPE_CHECKING:
    from collections.abc import Iterable


class ArenaError(Exception):
    """Something stopped the work: `message` says what, `why` the cause, `hint` what to try.

    Its text is the message; a traceback shows the cause and the advice below it. It can be copied
    and pickled, so that it may pass between processes.
    """

    exit_code = 1
    arena = ""
    """Arena's own text for this error, if arena's SDK searches the output for that text."""

    def __init__(self, message: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.hint = hint
        self.notes: tuple[str, ...] = ()
        """Oddities of the cluster that may be the cause."""
        self._added: list[str] = []

    @property
    def sentence(self) -> str:
        """The message and its cause in one text: `MESSAGE: CAUSE`."""
        return f"{self.message}: {self.why}" if self.why else self.message

    @property
    def __notes__(self) -> list[str]:
        """What a traceback shows below the message (PEP 678): the cause and advice as of now."""
        known = (("why", self.why), ("hint", self.hint))
        return [*(f"{word}: {text}" for word, text in known if text), *self._added]

    @__notes__.setter
    def __notes__(self, notes: list[str]) -> None:
        self._added = notes

    def add_note(self, note: str, /) -> None:
        """Have a traceback show one more line."""
        self._added.append(note)

    def __reduce__(self) -> tuple[object, ...]:
        # Constructors take more than the message, the only argument of the default.
        return _bare, (type(self), self.args), self.__dict__


def _bare(kind: type[ArenaError], args: tuple[object, ...]) -> ArenaError:
    """An error of a type, without its attributes."""
    made = kind.__new__(kind)
    made.args = args
    return made


class UsageError(ArenaError):
    """The command line or a file given on it cannot be read, or contradicts itself.

    `flag` is the option that the error is about, as typed; empty for none or several.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, why: str | None = None, hint: str | None = None, flag: str = ""
    ) -> None:
        super().__init__(message, why=why, hint=hint)
        self.flag = flag


class InvalidJob(UsageError):
    """A field of the job is wrong."""


class InvalidValue(InvalidJob, ValueError):
    """A text is not a value of the required type, such as a quantity."""


class UnreadableTopology(ArenaError):
    """A description of a machine or a cluster is invalid: the reason, and the line or path."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.reason = message
        self.where = where


class NotPossible(ArenaError):
    """The state of the job does not allow this: it is over, or controlled by another system."""


class NotFound(ArenaError):
    """The job, pod, node or machine named does not exist."""


class JobNotFound(NotFound):
    """No job has this name in the namespace."""

    def __init__(self, name: str, namespace: str, *, hint: str | None = None) -> None:
        if namespace.isdecimal() and not hint:
            hint = f"-n is the namespace; --tail {namespace} shows the last {namespace} lines"
        super().__init__(
            f"no job {name} in namespace {namespace}",
            hint=hint
            or f"{command('list', namespace=namespace)} shows its jobs, with -A those of all"
            " namespaces",
        )
        self.name = name
        # Arena's Python SDK compares the whole text, with the name of its own program.
        self.arena = (
            f"Not found training job {name} in namespace {namespace},"
            "please use 'arena submit' to create it."
        )


class AlreadyExists(ArenaError):
    """The name is taken."""


class JobExists(AlreadyExists):
    """A job has this name already; `why` says how the two differ, if that was compared."""

    def __init__(self, name: str, namespace: str, *, why: str | None = None) -> None:
        delete = command("delete", name, namespace=namespace)
        super().__init__(
            f"job {name} already exists",
            why=why,
            hint=f"{delete}; or --exists replace, which deletes and submits again",
        )
        self.name = name
        self.arena = f"the job {name} is already exist, please delete it first."


class JobDeleted(ArenaError):
    """The job was deleted while it was waited for, followed or started."""


class JobFailed(ArenaError):
    """The job ended badly; the program ends with the launcher's own exit code."""

    def __init__(
        self, message: str, *, exit_code: int, why: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, why=why, hint=hint)
        self.exit_code = exit_code


GOOD, REDIRECT = 200, 300
BAD_REQUEST, UNKNOWN_CALLER, FORBIDDEN, ABSENT = 400, 401, 403, 404
CONFLICT, GONE, TOO_LARGE, INVALID, OVERLOADED = 409, 410, 413, 422, 429
SERVER_ERROR = 500
"""HTTP codes (RFC 9110, 15; RFC 6585, 4). From 200 on a request has succeeded, from 300 on it has
not, and from 500 on the server or a gateway failed, maybe after a write: an etcd timeout is a 500,
a gateway's timeout a 504."""


class ClusterError(ArenaError):
    """The API server refused, disconnected or answered nonsense; `status` is its HTTP code."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        why: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, why=why, hint=hint)
        self.status = status


class NotNow(ArenaError):
    """A gang was to start, and has to wait."""

    exit_code = 3


class NoGain(ArenaError):
    """A running gang goes on: its best new placement has no higher band of bandwidth.

    An answer rather than a failure: nobody asked for a restart that gains nothing.
    """

    exit_code = 0


class AccessDenied(ClusterError):
    """The API server does not know the caller (401), or does not allow the call (403).

    `resource` is the resource of the call, if it was about one.
    """

    exit_code = 4
    resource = ""


class TimedOut(ArenaError):
    """No answer in time; `final`: there is no time for another try either."""

    exit_code = 6
    final = False


def temporary(error: ArenaError) -> bool:
    """Whether another try may succeed: no answer, an error of the server, or its overload."""
    if isinstance(error, NotFound):
        return False
    status = error.status if isinstance(error, ClusterError) else None
    return status is None or status == OVERLOADED or status >= SERVER_ERROR


_MOST_NEAR = 3


def command(verb: str, *names: str, namespace: str) -> str:
    """The command line of a verb about some jobs, to be copied whatever the default namespace."""
    return " ".join(["arena-topo", verb, *names, "-n", namespace])


NEAR_WORD = 0.7
"""The likeness of misspelt flags and commands: of so many names some are alike by chance."""


def near(name: str, known: Iterable[str], *, alike: float = 0.6, prefix: str = "") -> str | None:
    """The hint with the known name nearest to this one; None without a near name.

    `alike` is the least likeness of the two, from 0 to 1 (as difflib counts it), without the
    `prefix` that all names have. Capitals and punctuation are ignored. The shortest names that
    begin with this one come first.
    """
    import difflib  # noqa: PLC0415 - only for what is wrong

    key, plain = _plain(name.removeprefix(prefix)), dict[str, str]()
    for candidate in known:
        plain.setdefault(_plain(candidate.removeprefix(prefix)), candidate)
    longer = sorted(
        (candidate for candidate in plain if key and candidate.startswith(key)), key=len
    )
    guesses = [candidate for candidate in longer if len(candidate) == len(longer[0])][:_MOST_NEAR]
    guesses = guesses or difflib.get_close_matches(key, list(plain), n=1, cutoff=alike)
    return f"did you mean {' or '.join(plain[guess] for guess in guesses)}?" if guesses else None


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
