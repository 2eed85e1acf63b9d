"""What NCCL found and chose on each host: interfaces, network cards, plugins.

The lines are those of src/bootstrap.cc, src/transport/net_ib.cc, net_socket.cc and
src/plugin/net.cc of 2.4 to 2.30, and of the plugins of AWS (aws-ofi-nccl) and HPC-X
(nccl-rdma-sharp-plugins).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from arena_topo.nccl import Device, Host
from arena_topo.nccl.formats import LONGEST_SAID

MOST_PLUGIN_LINES = 40
"""Lines on plugins that are kept for a host: they are few, or the same again."""

_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (.+)")
_INTERFACE = re.compile(r"(?:\[(\d+)\])?([^\s:\[\]]+):(\S+?)<\d+>")
_SOCKETS = re.compile(r"NET/Socket ?: Using (\[.+)")
_CARDS = re.compile(r"NET/(IB\w*) ?: Using (\[.+)")
_CARD = re.compile(
    r"\[(\d+)\](?:=\{(?P<joined>[^}]+)\}|(?P<name>[^\s:\[\]]+):(?P<port>\d+)(?::\d*)*/(?P<layer>\w+)\S*)"
)
_JOINED = re.compile(r"\[\d+\] ([^\s:]+):\d+/\w+")
_MADE = re.compile(r"NET/IB ?: Made virtual device \[(\d+)\] name=(\S+) ")
_GDR = re.compile(r"NET/([^/:]+?) ?: GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'")
_NETWORK = re.compile(r"Using network (\S.*)|Assigned NET plugin (\S.*) to comm")
_PLUGIN = re.compile(
    r"NET/Plugin|NET/OFI (?:Using|Initializing|Selected|Running|Configuring|Setting)"
    r"|Initialized NET plugin|Plugin name set by env"
)


@dataclass(slots=True)
class Findings:
    """A host while its lines come in."""

    name: str
    bootstrap: dict[tuple[str, str], None] = field(default_factory=dict)
    networks: dict[str, None] = field(default_factory=dict)
    devices: dict[tuple[str, int, str], Device] = field(default_factory=dict)
    gdr: dict[tuple[str, int, str], bool] = field(default_factory=dict)
    no_ib: bool = False
    no_ib_said: str = ""
    plugins: dict[str, None] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)

    def read(self, text: str, *, whole: bool) -> str | None:
        """Take in a line; the network that a communicator of its thread uses, if it says one."""
        if text.startswith("NET/IB") and text.endswith("No device found."):
            self.no_ib = True
            self.no_ib_said = self.no_ib_said or text[:LONGEST_SAID]
        elif found := _NETWORK.fullmatch(text):
            if whole:
                name: str = found[1] or found[2]
                self.networks.setdefault(name)
                return name
        elif found := _BOOTSTRAP.fullmatch(text):
            for _, interface, address in _INTERFACE.findall(found[1]):
                self.bootstrap.setdefault((interface, address))
                self.lines.setdefault(interface, text[:LONGEST_SAID])
        elif found := _GDR.fullmatch(text):
            self.gdr[found[1], int(found[3]), found[4]] = found[2] == "Enabled"
        elif _PLUGIN.match(text):
            if whole and len(self.plugins) < MOST_PLUGIN_LINES:
                self.plugins.setdefault(text[:LONGEST_SAID])
        else:
            for one in _devices(text):
                key = (one.network, one.index, one.name)
                old = self.devices.get(key)
                if old is None or old.port is None:
                    self.devices[key] = one
                if one.network == "Socket":
                    self.lines.setdefault(one.name, text[:LONGEST_SAID])
        return None

    @property
    def facts(self) -> int:
        """How much is kept of it."""
        of_sockets = len(self.bootstrap) + len(self.networks)
        return of_sockets + len(self.devices) + len(self.gdr) + len(self.plugins)

    @property
    def said(self) -> bool:
        """Whether anything of it was said."""
        return self.no_ib or self.facts > 0

    def told(self) -> Host:
        """All that was said of it."""
        devices = dict(self.devices)
        for (network, index, name), able in self.gdr.items():
            key = ("IB" if network.startswith("IB") else network, index, name)
            known = devices.get(key) or Device(network=key[0], index=index, name=name)
            devices[key] = replace(known, gdr=able)
        return Host(
            name=self.name,
            bootstrap=tuple(self.bootstrap),
            networks=tuple(self.networks),
            devices=tuple(devices[key] for key in sorted(devices)),
            no_ib=self.no_ib,
            plugins=tuple(self.plugins),
            said=dict(self.lines),
            no_ib_said=self.no_ib_said,
        )


def about_hosts(text: str) -> bool:
    """Whether a line may be about interfaces, cards or plugins."""
    return text.startswith(("NET/", "Bootstrap", "Using network ", "Assigned NET ", "Initialized "))


def _devices(text: str) -> Iterator[Device]:
    if found := _SOCKETS.fullmatch(text):
        for index, name, address in _INTERFACE.findall(found[1]):
            if index:
                yield Device(network="Socket", index=int(index), name=name, address=address)
    elif found := _CARDS.fullmatch(text):
        for card in _CARD.finditer(found[2].partition("; OOB")[0]):
            joined = card["joined"]
            yield Device(
                network="IB",
                index=int(card[1]),
                name="+".join(_JOINED.findall(joined)) if joined else card["name"],
                port=None if joined else int(card["port"]),
                layer=None if joined else card["layer"],
            )
    elif found := _MADE.match(text):
        yield Device(network="IB", index=int(found[1]), name=found[2])
