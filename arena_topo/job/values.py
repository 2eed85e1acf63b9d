"""The small values that a job is made of, each read from the text that a person types.

`parse` raises InvalidValue, a ValueError, in arena's words (arena v0.15.5, `pkg/argsbuilder`) where
it has any; whoever reads the command line names the flag.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

from arena_topo.errors import InvalidValue
from arena_topo.flag import MOST_HOURS
from arena_topo.names import is_key


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A `KEY=VALUE` pair, split at the first `=`; the value may be empty, the key may not."""

    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `KEY=VALUE`; InvalidValue names what is missing."""
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InvalidValue(f"expected KEY=VALUE, got {text!r}")
        return cls(key=key, value=value)

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class EnvVar(KeyValue):
    """An environment variable of every container."""

    __slots__ = ()


_QUANTITY = re.compile(
    r"\+?(?P<number>\d+\.?\d*|\.\d+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII
)
_MOST = (1 << 63) - 1
"""The largest number a quantity may stand for (kubernetes, apimachinery, resource.Quantity)."""
_LEAST = Decimal("1e-9")
"""What the API server rounds a smaller quantity up to (the same source)."""
_SHOWN = 80
"""Characters of a text that is no quantity which a person needs to see."""

_SCALE = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A Kubernetes quantity such as `500m` or `2Gi`, kept as written, with its exact amount."""

    text: str

    def __post_init__(self) -> None:
        if _QUANTITY.fullmatch(self.text) is None:
            raise InvalidValue(f"{self.text[:_SHOWN]!r} is not a quantity such as 500m, 2 or 4Gi")
        if self.amount > _MOST:
            raise InvalidValue(f"{self.text[:_SHOWN]!r} is out of range")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a quantity; InvalidValue if it is none."""
        return cls(text=text)

    @property
    def amount(self) -> Decimal:
        """The exact number meant, in cores or bytes; what is between 0 and 1n counts as 1n."""
        found = _QUANTITY.fullmatch(self.text)
        if found is None:
            raise InvalidValue(f"{self.text!r} is not a quantity")
        number, suffix = Decimal(found["number"]), found["suffix"] or ""
        try:
            amount = number * (_SCALE[suffix] if suffix in _SCALE else Decimal("1" + suffix))
        except ArithmeticError as error:
            raise InvalidValue(f"{self.text[:_SHOWN]!r} is out of range") from error
        return max(amount, _LEAST) if amount else amount

    def times(self, count: int) -> Self:
        """So many times this amount, in the same unit; at most what a quantity may stand for."""
        found = _QUANTITY.fullmatch(self.text)
        if found is None:
            raise InvalidValue(f"{self.text!r} is not a quantity")
        if self.amount * count > _MOST:
            return type(self)(text=str(_MOST))
        number = f"{Decimal(found['number']) * count:f}"
        number = number.rstrip("0").rstrip(".") if "." in number else number
        return type(self)(text=number + (found["suffix"] or ""))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An extended resource for every worker, such as `amd.com/gpu=1`."""

    name: str
    quantity: Quantity

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=QUANTITY` with arena's texts for what is wrong."""
        name, equals, quantity = text.partition("=")
        if not (name and equals and quantity):
            raise InvalidValue(f"invalid device '{text}', refer to amd.com/gpu=1")
        if not is_key(name):
            raise InvalidValue(f"device name '{name}' is not a qualified name")
        if name == "nvidia.com/gpu":
            raise InvalidValue(
                f"please use '--gpus {quantity}' instead of '--device nvidia.com/gpu={quantity}'"
            )
        if name in {"cpu", "memory"}:
            raise InvalidValue(
                f"please use '--{name} {quantity}' instead of '--device {name}={quantity}'"
            )
        if "/" not in name and not name.startswith("hugepages-") and name != "ephemeral-storage":
            # What has no vendor must be one of the resources that Kubernetes itself knows.
            raise InvalidValue(f"device '{name}' has no vendor before it, refer to amd.com/gpu=1")
        try:
            device = cls(name=name, quantity=Quantity.parse(quantity))
        except ValueError as error:
            raise InvalidValue(
                f"device value '{quantity}' is not a valid quantity, refer to amd.com/gpu=1"
            ) from error
        if "/" in name and device.quantity.amount % 1:
            raise InvalidValue(f"device value '{quantity}' is no whole number of devices")
        return device

    def __str__(self) -> str:
        return f"{self.name}={self.quantity}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A persistent volume claim and where it is mounted: `--data NAME:/PATH`."""

    name: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME:/PATH` with arena's texts for what is wrong."""
        if text.count(":") != 1:
            raise InvalidValue(f"dataset {text} has incorrect format, should like data_name:/data0")
        name, _, path = text.partition(":")
        if len(name) == 1:
            raise InvalidValue(
                "volume name is too short, names should be at least two alphanumeric characters"
            )
        if re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", name) is None:
            raise InvalidValue(
                f"{name!r} includes invalid characters for a volume name, only"
                " '[a-zA-Z0-9][a-zA-Z0-9_.-]' are allowed"
            )
        if not path.startswith("/"):
            raise InvalidValue(f"invalid dataDir: '{path}' must be absolute")
        if not path.strip("/"):
            raise InvalidValue("invalid specification: dataDir can't be '/'")
        return cls(name=name, path=path)

    def __str__(self) -> str:
        return f"{self.name}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A folder of the node and where it is mounted: `--data-dir /HOST[:/CONTAINER]`."""

    host: str
    container: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `/HOST[:/CONTAINER]`; neither side may be relative or the root."""
        host, colon, container = text.partition(":")
        container = container if colon else host
        for path in (host, container):
            if not path.startswith("/") or not path.strip("/") or ":" in path:
                raise InvalidValue(f"invalid DataDir: '{text}'")
        return cls(host=host, container=container)

    def __str__(self) -> str:
        return f"{self.host}:{self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A local file that every container gets: `--config-file PATH[:/PATH/IN/CONTAINER]`.

    The path is kept as typed; the edge of the program expands it and reads the file.
    """

    source: str
    target: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PATH[:/PATH/IN/CONTAINER]` with arena's texts for what is wrong."""
        source, colon, target = text.partition(":")
        if not source or ":" in target:
            raise InvalidValue(
                "invalid format for assigning config file,it should be "
                "'--config-file <host_path_file>:<container_path_file>'"
            )
        if colon and not target.startswith("/"):
            raise InvalidValue("the path of file in container must be absolute path")
        return cls(source=source, target=target if colon else None)

    def __str__(self) -> str:
        return self.source if self.target is None else f"{self.source}:{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """What taint the pods bear; empty key with `Exists` bears all.

    `--toleration all`, or `--toleration KEY=VALUE:EFFECT,OPERATOR`, of which KEY is enough: arena's
    guide shows that form (docs/training/mpijob/toleration.md), though its code drops it (v0.15.5).
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read arena's form; anything else is an InvalidValue that shows the form."""
        if text == "all":
            return cls(operator="Exists")
        found = re.fullmatch(
            r"(?P<key>[^=:,\s]+)(=(?P<value>[^=:,]*))?(:(?P<effect>[^,:]*)(,(?P<operator>\w+))?)?",
            text,
        )
        form = f"expected 'all' or KEY=VALUE:EFFECT,OPERATOR, got {text!r}"
        if found is None:
            raise InvalidValue(form)
        operator = found["operator"] or ("Exists" if found["value"] is None else "Equal")
        if operator not in {"Equal", "Exists"}:
            raise InvalidValue(f"{form}: the operator is Equal or Exists")
        effect = found["effect"] or ""
        if effect not in {"", "NoSchedule", "PreferNoSchedule", "NoExecute"}:
            raise InvalidValue(
                f"{form}: the effect is NoSchedule, PreferNoSchedule, NoExecute or empty"
            )
        if operator == "Exists" and found["value"]:
            raise InvalidValue(f"{form}: the operator Exists takes no value")
        return cls(key=found["key"], operator=operator, value=found["value"] or "", effect=effect)

    def __str__(self) -> str:
        if not self.key:
            return "all"
        return f"{self.key}={self.value}:{self.effect},{self.operator}"

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a taint is borne, by the rules of the Kubernetes scheduler."""
        if self.effect and self.effect != effect:
            return False
        if self.key and self.key != key:
            return False
        return self.operator == "Exists" or self.value == value


_UNITS = {
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "\u00b5s": Decimal("1e-6"),
    "\u03bcs": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
}
"""Seconds in each unit of Go's `time.ParseDuration`, both signs for micro included."""

_SPAN = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(sorted(_UNITS, reverse=True))})")


class Duration(int):
    """A time span in whole seconds, read and shown as Go writes it: `90s`, `10m`, `1h30m`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a span, rounded up to a second; InvalidValue shows the form.

        A number without a unit is an error, as in Go, unless it is 0.
        """
        if text == "0":
            return cls(0)
        parts = _SPAN.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise InvalidValue(f"expected a time such as 90s, 10m or 1h30m, got {text!r}")
        seconds = sum(Decimal(number) * _UNITS[unit] for number, unit in parts)
        if seconds > MOST_HOURS * 3600:
            raise InvalidValue(f"expected at most {MOST_HOURS}h")
        return cls(math.ceil(seconds))

    def __str__(self) -> str:
        hours, rest = divmod(int(self), 3600)
        minutes, seconds = divmod(rest, 60)
        parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
        return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
