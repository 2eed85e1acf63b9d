"""What Kubernetes takes as a name, a label or a variable (apimachinery, `pkg/util/validation`)."""

from __future__ import annotations

import re

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"(?!\.\.|\.\Z)[-._a-zA-Z][-._a-zA-Z0-9]*")

LONGEST_SUBDOMAIN = 253
"""Characters of a DNS subdomain (RFC 1123)."""


def is_dns_label(text: str) -> bool:
    """Whether a namespace, a volume or a Service can be called so: a DNS label (RFC 1123)."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether nodes and most other objects can be called so: a DNS subdomain (RFC 1123)."""
    return len(text) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_word(text: str) -> bool:
    """Whether a text can be the value of a label that is not empty."""
    return _WORD.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a text can be the value of a label; the empty one can."""
    return not text or is_word(text)


def is_key(text: str) -> bool:
    """Whether a text can be the key of a label: a word, after a subdomain and `/` if it has one."""
    prefix, slash, word = text.rpartition("/")
    return is_word(word) and (not slash or is_subdomain(prefix))


def is_variable(text: str) -> bool:
    """Whether a text can name a variable; what would be a path upwards cannot (IsEnvVarName)."""
    return _VARIABLE.fullmatch(text) is not None
