"""Why a gang waits, was withdrawn, rolled back or suspended: a code with parameters, as data.

It is recorded on the job beside its sentence, for versions that do not know its code.
The sentences are in this module alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from arena_topo.queueing.patience import PatientWait


class CauseCode(StrEnum):
    """The reason why a gang does not run, for programs."""

    TEXT = "text"
    """Only a sentence, of the solver or of another system."""
    ANOTHER_STARTER = "another-starter"
    EVICTED = "evicted"
    IMAGE = "image"
    JOBS_HIDDEN = "jobs-hidden"
    NODE_LOST = "node-lost"
    NOT_RESUMED = "not-resumed"
    OLD_PODS = "old-pods"
    OTHER_QUEUE = "other-queue"
    PATIENCE = "patience"
    QUOTA = "quota"
    QUOTA_REFUSED = "quota-refused"
    """The API server refused an object of the gang for a quota, in its words."""
    REPLANNED = "replanned"
    STALLED = "stalled"
    SUSPENDED_BY_OTHERS = "suspended-by-others"
    TURN = "turn"
    WORKER_DELETED = "worker-deleted"


_SENTENCES = {
    CauseCode.TEXT: "{text}",
    CauseCode.ANOTHER_STARTER: "another program is starting it as well; it is {state} now",
    CauseCode.EVICTED: "{pod} was evicted: {text}",
    CauseCode.IMAGE: "{pod}: {text}",
    CauseCode.JOBS_HIDDEN: "the jobs of other namespaces may not be listed, so it is not known"
    " whether these GPUs are free; the controller starts it",
    CauseCode.NODE_LOST: "node {node} was lost: {state}",
    CauseCode.NOT_RESUMED: "its submission stopped before its start; it waits for its turn",
    CauseCode.OLD_PODS: "the pods of its last run have not ended yet",
    CauseCode.OTHER_QUEUE: "{queue} decides when it starts; then it is placed",
    CauseCode.PATIENCE: "it waits for {best} GB/s on {place}; less than a third of that is offered",
    CauseCode.QUOTA: "quota {quota} of the namespace leaves {left} {resource}, and the gang needs"
    " {needs}",
    CauseCode.QUOTA_REFUSED: "{text}",
    CauseCode.REPLANNED: "it was stopped by `arena-topo replan`, and starts again",
    CauseCode.STALLED: "no progress for {limit}: {text}",
    CauseCode.SUSPENDED_BY_OTHERS: "it was suspended by other means than arena-topo",
    CauseCode.TURN: "{job} comes first in the queue, and the GPUs that would fit are reserved"
    " for it",
    CauseCode.WORKER_DELETED: "{pod} was deleted from node {node}{state}",
}

QUOTAS = frozenset({CauseCode.QUOTA, CauseCode.QUOTA_REFUSED})
"""The causes that are a quota of the namespace, and not a lack of GPUs."""


class _Parameters(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A code with the parameters of its sentence; `code` may be that of a newer version."""

    code: str
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        """The sentence; for an unknown code the code and its parameters."""
        sentence = _SENTENCES.get(CauseCode(self.code)) if self.code in set(CauseCode) else None
        if sentence is not None:
            return sentence.format_map(_Parameters(self.parameters))
        return ", ".join([self.code, *(f"{key}: {text}" for key, text in self.parameters.items())])


def because(code: CauseCode, **parameters: str) -> Cause:
    """A cause with its parameters."""
    return Cause(code=code.value, parameters=parameters)


def patience_cause(wait: PatientWait) -> Cause:
    """The cause of a gang that waits for a better placement."""
    assert wait.best.bandwidth is not None
    best = f"{wait.best.bandwidth.point:.3g}"
    return because(CauseCode.PATIENCE, best=best, place=wait.place)


def in_words(text: str | None) -> Cause | None:
    """A cause that is only a sentence; None without one."""
    return None if text is None else because(CauseCode.TEXT, text=text)


def encode_cause(cause: Cause) -> dict[str, Any]:
    """The keys of the recorded forecast that carry a cause: its sentence, and its code with it."""
    record: dict[str, Any] = {"reason": str(cause)}
    if cause.code != CauseCode.TEXT:
        record["cause"] = {**cause.parameters, "code": cause.code}
    return record


def decode_cause(record: Mapping[str, Any]) -> Cause | None:
    """The cause in a recorded forecast; None without one.

    A code of a newer version is replaced by the sentence that was recorded with it.
    """
    text, coded = record.get("reason"), record.get("cause")
    text = text if isinstance(text, str) else None
    texts = {
        key: text
        for key, text in (coded.items() if isinstance(coded, dict) else ())
        if isinstance(text, str)
    }
    code = texts.pop("code", None)
    if code is not None and (code in set(CauseCode) or text is None):
        return Cause(code=code, parameters=texts)
    return in_words(text)
