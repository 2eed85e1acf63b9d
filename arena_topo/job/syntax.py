"""Texts of a job that no cluster would take: such a job is refused.

arena lets these through, and the API server or the kubelet refuses the pods long after the job was
submitted. The rules are in `names`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from arena_topo.errors import InvalidJob
from arena_topo.names import is_dns_label, is_key, is_label_value, is_subdomain, is_variable

if TYPE_CHECKING:
    from arena_topo.job import MPIJob

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


def check_namespace(text: str) -> None:
    """InvalidJob for a text that no namespace can be called: it takes a DNS label (RFC 1123)."""
    why = f"no namespace can be called {_short(text)}"
    _demand(is_dns_label(text), "--namespace", why, _LABEL_FORM)


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
            why = f"{_short(value)} is no value of a label"
            _demand(is_label_value(value), flag, why, _WORD_FORM)
    for variable in job.env:
        why = f"{_short(variable.key)} is no name of a variable"
        _demand(is_variable(variable.key), "--env", why, _VARIABLE_FORM)
    for flag, names in (
        ("--image-pull-secret", job.image_pull_secret),
        ("--service-account", (job.service_account,)),
        ("--priority", (job.priority,)),
        ("--data", [one.name for one in job.data]),
    ):
        for name in filter(None, names):
            _demand(is_subdomain(name), flag, f"nothing can be called {_short(name)}", _NAME_FORM)
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
        raise InvalidJob(f"{flag} is invalid", why=why, hint=f"it takes {form}", flag=flag)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
