"""Access -> Connection: JSON over HTTP with one API server, and errors with advice."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from arena_topo import __version__
from arena_topo.engines import REQUESTS, Options
from arena_topo.engines.kubernetes.failures import (
    IN_BETWEEN,
    answers_object,
    broken,
    cause,
    is_object,
    odd_body,
    parsed,
    refusal_error,
    status_error_code,
    unreachable,
)
from arena_topo.engines.kubernetes.kubeconfig import (
    Access,
    provided,
    resolve,
    with_plugin_credentials,
)
from arena_topo.engines.kubernetes.shapes import (
    ANY,
    LIST,
    POD,
    PODS,
    BadAnswer,
    bad_answer,
    checked,
    kube_object,
    shape_error,
)
from arena_topo.engines.kubernetes.transport import (
    FAULTS,
    MAX_POLL_SECONDS,
    UNPACKED,
    ConnectionPool,
    HttpAnswer,
    Rest,
    Unopened,
)
from arena_topo.engines.rollback_time import delay_alarm
from arena_topo.errors import (
    GONE,
    GOOD,
    OVERLOADED,
    REDIRECT,
    UNKNOWN_CALLER,
    AccessDenied,
    ClusterError,
    NotFound,
    TimedOut,
)
from arena_topo.numbers import parse_count

CONNECT_TIMEOUT = 5.0
"""Seconds to wait for a TCP or TLS handshake; a reachable API server needs a few milliseconds."""

PAGE = 500
"""Objects per list request (kubectl's own chunk size)."""

PAGES = 2000
"""Pages of a list: a million objects, where the largest clusters have 150,000 pods."""

Keep = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Reduces an object of a list to what is needed; None leaves it out."""

_ReadPage = Callable[[bytes], Mapping[str, Any] | None]
"""Reads the `items` and the `metadata` of a page of a list; None if the bytes are no such page."""

_RANDOM = random.Random()  # noqa: S311  no secret; threads leave the generator of others alone

PatchKind = Literal["json", "merge", "strategic"]
"""RFC 6902, RFC 7386, or Kubernetes' strategic merge, which knows the keys of lists."""

_PATCHES: Mapping[PatchKind, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}

_Body = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

_REVISION = frozenset({"resourceVersion", "resourceVersionMatch"})

_ATTEMPTS = 5
_FIRST_DELAY = 0.1
_LAST_DELAY = 5.0
_GRACE = 10.0
"""Seconds beyond its agreed end after which a silent watch counts as broken."""
ROLLBACK = 5.0
"""Seconds that the requests of a rollback have after the deadline."""
MAX_RESPONSE_BYTES = 128 << 20
"""The size limit of a decoded answer in bytes: a page of 500 pods has about 10 MB, and a megabyte
of gzip may contain a gigabyte."""
_HEADERS = (("accept", "application/json, */*"), ("user-agent", f"arena-topo/{__version__}"))

_requests = logging.getLogger(REQUESTS)

_PASSING = frozenset({500, 502, 503, 504})


def access(options: Options) -> Access:
    """The address of the API server and the credentials; UsageError names the invalid setting."""
    access = resolve(options)
    if access.provider:
        return provided(access)
    if access.plugin is None:
        return access
    limit = min(options.request_timeout or math.inf, options.deadline or math.inf)
    return with_plugin_credentials(
        access, access.plugin, patience=limit if limit < MAX_POLL_SECONDS else None
    )


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request; `head` (seconds) is set for a stream, and limits the wait for its head."""

    method: str
    target: str
    data: bytes | None
    content: str
    head: float | None


class Connection:
    """One API server: JSON in, JSON out. Every failure is an ArenaError with advice.

    Requests are retried if that is safe: GET requests if the server is overloaded or breaks off,
    others only if the server has rejected them unprocessed (429); at most five times, once more as
    often with renewed credentials, and within the request timeout (seconds; 0 is no limit, as in
    kubectl). `Options.deadline` (seconds from the construction on) limits all requests together;
    TimedOut after that.
    """

    def __init__(self, options: Options, at: Access | None = None) -> None:
        """`options` say where the server is; `at`, if given, replaces that."""
        self._options = options
        self._timeout = options.request_timeout or math.inf
        self._limit = math.inf if options.deadline is None else options.deadline
        self._deadline = time.monotonic() + self._limit
        self.silence = self._timeout
        """The idle timeout in seconds of an answer that must come at once."""
        # One tuple, since several threads write it: the server's time, and the monotonic time of
        # its arrival.
        self._clock: tuple[float, float] | None = None
        self.access = at or access(options)
        self._pool = ConnectionPool(self.access)
        self._renewing = threading.Lock()

    def close(self) -> None:
        """Close the idle connections; later requests open new ones."""
        self._pool.close()

    def now(self) -> float:
        """The server's time (Unix seconds, whole); this machine's time before the first answer.

        It is the time in the last answer plus the time that has passed here since.
        """
        clock = self._clock
        if clock is None:
            return time.time()
        return clock[0] + math.floor(time.monotonic() - clock[1])

    @property
    def server_time(self) -> float | None:
        """The server's time in its last answer (Date header), Unix seconds; None before it."""
        return None if self._clock is None else self._clock[0]

    @contextlib.contextmanager
    def grace(self) -> Iterator[None]:
        """Extend the deadline for the requests in the block, which roll something back.

        The alarm at the deadline of the command is delayed as well.
        """
        before, self._deadline = self._deadline, max(self._deadline, time.monotonic() + ROLLBACK)
        try:
            with delay_alarm(ROLLBACK):
                yield
        finally:
            self._deadline = before

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite without one."""
        return self._deadline - time.monotonic()

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Read one object; ClusterError for another answer. Other paths: the answer as it is."""
        return self._json("GET", path, query)[0]

    def find(self, path: str) -> dict[str, Any] | None:
        """Read one object; None if the object or its kind does not exist."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def permitted(self, path: str, keep: Keep | None = None) -> list[dict[str, Any]]:
        """What `collect` returns; empty if the list is forbidden or not served."""
        try:
            return self.collect(path, keep)
        except (AccessDenied, NotFound):
            return []

    def serves(self, group: str, version: str, plural: str) -> bool:
        """Whether this version of a group has a resource of this name."""
        served = kube_object(self.find(f"/apis/{group}/{version}") or {})
        return any(resource.name == plural for resource in served.resources)

    def post(
        self, path: str, body: Mapping[str, Any], **query: str
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Create one object; the stored object, and the server's warnings.

        AlreadyExists if its name is taken.
        """
        return self._json("POST", path, query, body)

    def put(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """Replace one object; the stored object.

        ClusterError with status 409 if the object has changed since its `resourceVersion`.
        """
        return self._json("PUT", path, query, body)[0]

    def patch(
        self,
        path: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        kind: PatchKind = "json",
        **query: str,
    ) -> dict[str, Any]:
        """Change one object; the stored object. The body of a JSON patch is a list of steps.

        ClusterError with status 409 if the body has an old `resourceVersion`, 422 if a `test` fails
        or the result is invalid. After a broken connection it is unknown whether the patch was
        applied. A JSON patch that tests what it changes may be retried; a 422 may then mean that
        the first try was applied.
        """
        return self._json("PATCH", path, query, body, content=_PATCHES[kind])[0]

    def delete(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> None:
        """Delete one object; the body is a DeleteOptions."""
        if path.endswith("/"):
            raise ValueError(f"{path} names no object, and would delete them all")
        self._json("DELETE", path, query, body)

    def collect(
        self, path: str, keep: Keep | None = None, *, judged: bool = False, **query: str
    ) -> list[dict[str, Any]]:
        """All objects of a list, page by page, each reduced by `keep` (None: left out).

        ClusterError names an invalid object, unless the caller checks objects itself (`judged`).
        Pages are dropped as soon as they are reduced. A list that changed too much between its
        pages (410) is read once more from the start, then in one piece. With `resourceVersion` and
        `resourceVersionMatch="Exact"` it is the list at exactly that revision; ClusterError with
        status 410 if the server no longer has it.
        """
        return self.listed(path, keep, judged=judged, **query)[0]

    def records(self, path: str, page: _ReadPage, **query: str) -> list[Any]:
        """The objects of a list, read in pages as in `collect`, and decoded by `page`.

        `page` must check the shape of the objects itself.
        """
        return self._whole(path, query, page)[0]

    def listed(
        self, path: str, keep: Keep | None = None, *, judged: bool = False, **query: str
    ) -> tuple[list[dict[str, Any]], str]:
        """What `collect` returns, and the resourceVersion of the list, the start of a watch."""
        pods = path.endswith("/pods")
        readers = (POD, ANY) if pods else (ANY,)
        # Object by object: a decoded page takes several times the memory of its text. Without
        # `keep` all of it is kept anyway, and decoding at once takes less time.
        pages = (PODS, LIST) if pods and keep is None else (LIST,)

        def reduced(item: Any) -> dict[str, Any] | None:
            obj = parsed(item, *readers) if isinstance(item, msgspec.Raw) else item
            if not is_object(obj):
                raise self.no_server(f"the list of {path} holds what is no object")
            right = obj if judged else checked(obj)
            return keep(right) if keep else right

        def decode(data: bytes) -> Mapping[str, Any] | None:
            page = parsed(data, *pages)
            if page is None or not page.kind.endswith("List"):
                return None
            items = [obj for item in page.items or () if (obj := reduced(item)) is not None]
            return {"items": items, "metadata": page.metadata}

        return self._whole(path, query, decode)

    def _whole(
        self, path: str, query: Mapping[str, str], decode: _ReadPage
    ) -> tuple[list[Any], str]:
        for limit in (PAGE, PAGE, 0):
            parameters = {**query, "limit": str(limit)} if limit else dict(query)
            items: list[Any] = []
            try:
                for _ in range(PAGES):
                    page = self._page(path, parameters, decode)
                    items += page["items"]
                    meta = page.get("metadata") or {}
                    token = meta.get("continue")
                    if not token:
                        return items, str(meta.get("resourceVersion") or "")
                    if not isinstance(token, str) or token == parameters.get("continue"):
                        break
                    # The token includes the revision; the server rejects a request with both.
                    parameters = {
                        key: parameter
                        for key, parameter in parameters.items()
                        if key not in _REVISION
                    }
                    parameters["continue"] = token
            except ClusterError as error:
                if error.status != GONE or not limit:
                    raise
            else:
                raise self.no_server(f"the list of {path} does not end")
        raise AssertionError("the last attempt returns or raises")

    def _page(self, path: str, query: Mapping[str, str], decode: _ReadPage) -> Mapping[str, Any]:
        """A page of a list, decoded."""
        response, data = self.answer("GET", path, query)
        page = decode(data) if response.status < REDIRECT else None
        if page is None:
            self._read("GET", path, response, data)  # raises what a Status says
            raise self.no_server(f"GET {path} returned no list")
        if not isinstance(page["metadata"], dict | None):
            raise self.no_server(f"the list of {path} has no metadata")
        return page

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        timeout: float,
        opened: Callable[[HttpAnswer], None] = lambda _: None,
        **query: str,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) for each change after a revision.

        `opened` is called as soon as the server has accepted the request. The watch ends when the
        server closes it, after `timeout` seconds; to go on, watch again from the resourceVersion of
        the last object (a BOOKMARK has nothing else). ClusterError with status 410 if the server no
        longer has the revision: list again. ClusterError without a status if the connection breaks.
        """
        seconds = max(1, math.ceil(min(timeout, self.left)))
        parameters = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        line: list[bytes] = []
        size = 0
        for piece in self.streamed(
            path, parameters, silence=None, whole=seconds + _GRACE, opened=opened
        ):
            end, *begun = piece.split(b"\n")
            line.append(end)
            size += len(end)
            if size > MAX_RESPONSE_BYTES:
                raise self.no_server(
                    f"a watch of {path} sent a line of over {MAX_RESPONSE_BYTES >> 20} MiB"
                )
            for start in begun:
                yield self._event(path, b"".join(line))
                line, size = [start], len(start)

    def _event(self, path: str, line: bytes) -> tuple[str, dict[str, Any]]:
        try:
            event = json.loads(line)
            kind, thing = str(event["type"]), dict(event["object"])
            status = int(thing.get("code") or 0) if kind == "ERROR" else 0
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self.no_server(f"a watch of {path} sent no event") from error
        if kind == "ERROR":
            raise refusal_error(
                "GET", path, status, thing.get("reason"), json.dumps(thing).encode()
            )
        return kind, thing

    def streamed(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        silence: float | None,
        whole: float = math.inf,
        opened: Callable[[HttpAnswer], None] = lambda _: None,
    ) -> Iterator[bytes]:
        """The body of a GET as it arrives; ends when the server ends it.

        `silence` is the idle timeout in seconds, None for no limit; the head has to come within it.
        `whole` limits the answer as a whole. `opened` is called as soon as the server has begun to
        answer with success. ClusterError if the connection breaks, a limit passes, or the answer is
        a web page or has an unknown encoding.
        """
        idle, end = math.inf if silence is None else silence, time.monotonic() + whole
        answer, _ = self.answer("GET", path, query, stream=True, head=min(idle, whole))
        try:
            if not GOOD <= answer.status < REDIRECT:
                until = self._until(math.inf)
                body = self._body(answer, "GET", path, lambda: until - time.monotonic())
                raise refusal_error("GET", path, answer.status, answer.reason, body)
            if (why := odd_body(answer.headers, unpacks=UNPACKED)) is not None:
                raise self.no_server(why)
            opened(answer)
            yield from answer.pieces(lambda: min(idle, end - time.monotonic()))
        except FAULTS as error:
            late = silence is not None and isinstance(error, TimeoutError)
            over = f"it was still open after {whole:g} s" if time.monotonic() >= end else None
            raise ClusterError(
                f"the connection to {self.access.server} broke",
                why=over or (f"nothing came for {silence:g} s" if late else cause(error)),
                hint=f"--request-timeout is {silence:g} s"
                if late and silence == self.silence
                else None,
            ) from error
        finally:
            answer.close()

    def dialled(self, timeout: float) -> Any:
        """The socket of a new connection to the API server, for the caller alone.

        `timeout` (seconds) limits each step of its opening. A proxy is used as for requests.
        ClusterError and TimedOut as for a request.
        """
        if self.left <= 0:
            raise self._late()
        timeout = min(timeout, self.left)
        try:
            return self._pool.dialled(timeout, lambda: math.inf)
        except (Unopened, *FAULTS) as error:
            limit = f"{timeout:g} s were waited"
            raise unreachable(self.access.server, "GET", error, limit) from error

    def asked(self, path: str, query: Mapping[str, str], silence: float | None) -> Any:
        """Send a GET; the socket of its answer, with the headers, uncompressed.

        `silence` is the idle timeout in seconds (None: no limit). The caller reads and closes the
        socket. ClusterError, TimedOut.
        """
        begun, target = time.monotonic(), f"{path}?{urlencode(query)}"
        sock = self.dialled(min(CONNECT_TIMEOUT, self._timeout))
        try:
            plain = ("accept-encoding", "identity")
            headers = (*_HEADERS, plain, *self.access.sent)
            self._pool.send(sock, "GET", target, headers)
        except OSError as error:
            sock.close()
            raise ClusterError(
                f"the connection to {self.access.server} broke", why=error.strerror
            ) from error
        log("GET", target, "sent", begun)
        sock.settimeout(silence if silence is not None and silence < MAX_POLL_SECONDS else None)
        return sock

    def renewed(self, used: Access) -> bool:
        """Renew the credentials, such as an expired token; False if `used` cannot be refreshed.

        If another thread has renewed them since `used` was read, nothing is done.
        """
        if not used.renewable:
            return False
        with self._renewing:
            if self.access is used:
                self.access = access(self._options)
                self._pool = ConnectionPool(self.access)
        return True

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: _Body = None,
        *,
        content: str = "application/json",
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        return self._read(
            method, path, *self.answer(method, path, query, body, content=content), body
        )

    def _read(
        self,
        method: str,
        path: str,
        response: HttpAnswer,
        data: bytes,
        body: _Body = None,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The object in an answer, checked, and the server's warnings."""
        answer = parsed(data)
        status = status_error_code(answer) if response.status < REDIRECT else response.status
        if status is not None:
            # As in client-go the Status decides, not the HTTP code of the answer.
            raise refusal_error(method, path, status, response.reason, data)
        if not isinstance(answer, dict):
            raise self.no_server(f"{method} {path} returned no JSON object")
        deleted = method == "DELETE" and answer.get("kind") != "Status"
        if (deleted or answers_object(method, path, body)) and not is_object(answer):
            raise self.no_server(f"{method} {path} returned what is no object")
        whole = "items" in answer or answer.get("kind") == "Status"
        if not whole and (odd := shape_error(answer)) is not None:
            raise bad_answer(answer, odd)
        text = ", ".join(response.headers.get_all("warning", []))
        warnings = re.findall(r'299 \S+ "((?:[^"\\]|\\.)*)"', text)
        return answer, tuple(re.sub(r"\\(.)", r"\1", text) for text in warnings)

    def no_server(self, why: str) -> BadAnswer:
        """The error for an answer that no API server would give."""
        return BadAnswer(
            f"{self.access.server} does not answer like a Kubernetes API server",
            why=why,
            hint=IN_BETWEEN,
        )

    def answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: _Body = None,
        *,
        content: str = "application/json",
        stream: bool = False,
        head: float = math.inf,
        patience: float = math.inf,
    ) -> tuple[HttpAnswer, bytes]:
        """The answer to a request, with retries, and its body unless `stream`.

        `patience` limits all tries together, in seconds, beside the deadline; `head` limits each
        until the head of a `stream` has come. The Date of the answer is stored.
        """
        request = _Request(
            method=method,
            target=path + ("?" + urlencode(query) if query else ""),
            data=None if body is None else json.dumps(body).encode(),
            content=content,
            head=head if stream else None,
        )
        used = self.access
        response, read = self._with_retries(request, self._until(patience))
        if response.status == UNKNOWN_CALLER and self.renewed(used):
            # The token has expired; it is renewed once, never in a loop.
            response.close()
            response, read = self._with_retries(request, self._until(patience))
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            server_time = parsedate_to_datetime(response.headers.get("date", ""))
            self._clock = server_time.timestamp(), time.monotonic()
        return response, read

    def _with_retries(self, request: _Request, until: float) -> tuple[HttpAnswer, bytes]:
        """The first answer that is no reason for another try (see the class), and its body."""
        for attempt in itertools.count(1):
            try:
                response, body = self._once(request, until)
            except (Unopened, *FAULTS) as error:
                if request.method != "GET" or not broken(error) or not _pauses(attempt, until):
                    raise unreachable(
                        self.access.server, request.method, error, self._patience()
                    ) from error
                continue
            if not self._overloaded(request.method, response, attempt, until):
                return response, body
            response.close()
        raise AssertionError("the last try returns or raises")

    def _once(self, request: _Request, until: float) -> tuple[HttpAnswer, bytes]:
        """The answer to one try, and its body unless the request is for a stream."""
        begun = time.monotonic()
        end = until if request.head is None else begun + request.head
        typed = () if request.data is None else (("content-type", request.content),)
        try:
            response = self._pool.request(
                request.method,
                request.target,
                (*_HEADERS, ("accept-encoding", "gzip"), *self.access.sent, *typed),
                request.data,
                connect=min(CONNECT_TIMEOUT, max(0.001, until - begun)),
                rest=lambda: end - time.monotonic(),
            )
            streams = request.head is not None
            body = b"" if streams else self._body(response, request.method, request.target)
        except (Unopened, *FAULTS) as error:
            log(request.method, request.target, type(error).__name__, begun)
            raise
        log(request.method, request.target, str(response.status), begun)
        return response, body

    def _until(self, patience: float) -> float:
        """The end of all tries of a request (monotonic clock); TimedOut after the deadline."""
        if self.left <= 0:
            raise self._late()
        return time.monotonic() + min(self.left, self._timeout, patience)

    @staticmethod
    def _overloaded(method: str, response: HttpAnswer, attempt: int, until: float) -> bool:
        """Whether the server is overloaded, and a pause, which is over now, precedes a retry."""
        passes = method == "GET" and response.status in _PASSING
        wanted = parse_count(response.headers.get("retry-after", "").strip())
        return (response.status == OVERLOADED or passes) and _pauses(attempt, until, wanted)

    def _late(self) -> TimedOut:
        late = TimedOut(f"{self.access.server} took too long", hint=self._patience())
        late.final = self.left <= 0
        return late

    def _body(
        self, answer: HttpAnswer, method: str, target: str, rest: Rest | None = None
    ) -> bytes:
        """The whole body, decoded, of at most `MAX_RESPONSE_BYTES` bytes."""
        body = io.BytesIO()
        try:
            for piece in answer.pieces(rest):
                body.write(piece)
                if body.tell() > MAX_RESPONSE_BYTES:
                    path = target.partition("?")[0]
                    raise self.no_server(
                        f"{method} {path} returned more than {MAX_RESPONSE_BYTES >> 20} MiB"
                    )
        finally:
            answer.close()
        return body.getvalue()

    def _patience(self) -> str:
        """The time limit that has passed, with the name of its option."""
        if self.left <= 0:
            return f"--timeout is {self._limit:g} s in all"
        return f"--request-timeout is {self._timeout:g} s"


def _pauses(attempt: int, until: float, wanted: int | None = None) -> bool:
    """Sleep before a retry, as long as the server asks; False, at once, if no retry is left."""
    delay = min(_LAST_DELAY, _FIRST_DELAY * 2**attempt) * _RANDOM.uniform(0.5, 1.0)
    if wanted is not None:
        delay = float(wanted)
    if attempt == _ATTEMPTS or time.monotonic() + delay >= until:
        return False
    time.sleep(delay)
    return True


def log(method: str, target: str, outcome: str, begun: float) -> None:
    """Log one try, without headers and bodies: they contain secrets."""
    if _requests.isEnabledFor(logging.DEBUG):
        path = target.partition("?")[0]
        watch = "?watch=1" if "watch=1" in target else ""
        spent = round((time.monotonic() - begun) * 1000)
        _requests.debug("%s %s%s %s %d ms", method, path, watch, outcome, spent)
