"""What Kubernetes takes as a name, a label or a variable; a job that has anything else is refused.

arena lets these through, and the API server or the kubelet refuses the pods long after the job was
submitted. The rules are those of Kubernetes (apimachinery, `pkg/util/validation`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from arena_topo.errors import InvalidJob

if TYPE_CHECKING:
    from arena_topo.job import MPIJob

_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""DNS label (RFC 1123)."""
_PLAIN_VARIABLE = r"(?!\.\.|\.\Z)[-._a-zA-Z][-._a-zA-Z0-9]*"
"""IsEnvVarName: what would be a path upwards is none either."""

_LONGEST_NAME = 253
"""Characters of a DNS subdomain (RFC 1123)."""
_SHOWN = 60
"""Characters of a text that is refused which a person needs to see."""

_WORD_FORM = "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
_NAME_FORM = (
    "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
)
_KEY_FORM = f"{_WORD_FORM}, after a DNS name and '/' if need be: team or example.com/team"
_VARIABLE_FORM = "letters, digits, '_', '-' and '.', no digit and no '..' first, and not '.' alone"
_LABEL_FORM = "at most 63 lower case letters, digits and '-', with a letter or digit at both ends"
_IMAGE_FORM = "the name of an image, such as team/train:1"
_SHELL_FORM = "a program such as sh or bash"


def is_word(text: str) -> bool:
    """Whether a text can be the value of a label; the empty one can."""
    return not text or re.fullmatch(_WORD, text) is not None


def is_name(text: str) -> bool:
    """Whether a text can be the name of most objects: a DNS subdomain (RFC 1123)."""
    return len(text) <= _LONGEST_NAME and re.fullmatch(_NAME, text) is not None


def is_key(text: str) -> bool:
    """Whether a text can be the key of a label: a word, after a DNS name and `/` if it has one."""
    prefix, slash, word = text.rpartition("/")
    return re.fullmatch(_WORD, word) is not None and (is_name(prefix) if slash else True)


def check_namespace(text: str) -> None:
    """InvalidJob for a text that no namespace can be called: it takes a DNS label (RFC 1123)."""
    legal = re.fullmatch(_LABEL, text) is not None
    _demand(legal, "--namespace", f"no namespace can be called {_short(text)}", _LABEL_FORM)


def check(job: MPIJob) -> None:
    """InvalidJob for the first value that no cluster would take, by its flag."""
    for flag, keys in (
        ("--label", [one.key for one in job.label]),
        ("--selector", [one.key for one in job.selector]),
        ("--toleration", [one.key for one in job.toleration if one.key]),
        ("--annotation", [one.key for one in job.annotation]),
    ):
        for key in keys:
            # Of annotations alone the DNS name before the slash may have upper case.
            legal = is_key(key.lower() if flag == "--annotation" else key)
            _demand(legal, flag, f"{_short(key)} is no key", _KEY_FORM)
    for flag, values in (
        ("--label", [one.value for one in job.label]),
        ("--selector", [one.value for one in job.selector]),
        ("--toleration", [one.value for one in job.toleration]),
        ("--model-name", [job.model_name]),
    ):
        for value in values:
            _demand(is_word(value), flag, f"{_short(value)} is no value of a label", _WORD_FORM)
    for variable in job.env:
        legal = re.fullmatch(_PLAIN_VARIABLE, variable.key) is not None
        _demand(
            legal,
            "--env",
            f"{_short(variable.key)} is no name of a variable",
            _VARIABLE_FORM,
        )
    for flag, names in (
        ("--image-pull-secret", job.image_pull_secret),
        ("--service-account", (job.service_account,)),
        ("--priority", (job.priority,)),
        ("--data", [one.name for one in job.data]),
    ):
        for name in filter(None, names):
            _demand(is_name(name), flag, f"nothing can be called {_short(name)}", _NAME_FORM)
    for flag, text, form in (
        ("--image", job.image, _IMAGE_FORM),
        ("--sync-image", job.sync_image, _IMAGE_FORM),
        ("--tensorboard-image", job.tensorboard_image, _IMAGE_FORM),
        ("--shell", job.shell, _SHELL_FORM),
    ):
        blank = re.search(r"\s", text) is not None
        _demand(not blank, flag, f"{_short(text)} has a blank in it", form)
    _demand(bool(job.shell), "--shell", "it is empty", _SHELL_FORM)


def _demand(holds: bool, flag: str, why: str, form: str) -> None:  # noqa: FBT001
    if not holds:
        raise InvalidJob(f"{flag} is invalid", why=why, hint=f"it takes {form}")


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
