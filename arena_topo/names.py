"""Valid names, labels and variables of Kubernetes (apimachinery, `pkg/util/validation`)."""

from __future__ import annotations

import re

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"(?!\.\.|\.\Z)[-._a-zA-Z][-._a-zA-Z0-9]*")

LONGEST_SUBDOMAIN = 253
"""Characters of a DNS subdomain (RFC 1123)."""


def is_dns_label(text: str) -> bool:
    """Whether a text is a DNS label (RFC 1123), as in names of namespaces, volumes and Services."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether a text is a DNS subdomain (RFC 1123), as in names of nodes and most other objects."""
    return len(text) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_word(text: str) -> bool:
    """Whether a text is a non-empty value of a label."""
    return _WORD.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a text is a value of a label; it may be empty."""
    return not text or is_word(text)


def is_key(text: str) -> bool:
    """Whether a text is a key of a label: a word, optionally after a subdomain and `/`."""
    prefix, slash, word = text.rpartition("/")
    return is_word(word) and (not slash or is_subdomain(prefix))


def is_variable(text: str) -> bool:
    """Whether a text is a name of a variable; `..` is none (IsEnvVarName)."""
    return _VARIABLE.fullmatch(text) is not None
