"""This host's addresses: which of them the other ranks can reach, and which interface carries them."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_SIOCGIFADDR = 0x8915


def interfaces() -> dict[str, str]:
    """IPv4 address of every network interface that has one, by interface name."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def address_towards(host: str) -> str | None:
    """The address this host would send from to reach `host`; no packet is sent. None if `host` is unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(host: str) -> str | None:
    """The interface through which `host` is reached, where it can be told."""
    address = address_towards(host)
    return next((name for name, own in interfaces().items() if own == address), None)


def own_addresses() -> list[str]:
    """Every address at which another host might reach this one, the host name first, loopback last."""
    names = [socket.gethostname(), *interfaces().values()]
    return [a for a in dict.fromkeys(names) if not a.startswith("127.")] + ["127.0.0.1"]


def network() -> str:
    """The network stack this process uses: equal only for processes that reach each other by the loopback."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


def addresses_for(meeting_host: str, others: Iterable[Iterable[str]]) -> list[str]:
    """Where rank 0 listens for ranks of other hosts: at the address they all meet at, or those that lead to them.

    Args:
        meeting_host: where the ranks met; empty where they did so without an address.
        others: the names and addresses of each other host, as it knows them itself.
    """
    towards = [address_towards(meeting_host) if meeting_host else None]
    if not _is_reachable(towards[0]):
        towards = [next(filter(_is_reachable, map(address_towards, names)), None) for names in others]
    found = list(dict.fromkeys(address for address in towards if address is not None and _is_reachable(address)))
    return found or [address for address in interfaces().values() if _is_reachable(address)]


def _is_reachable(address: str | None) -> bool:
    return address is not None and not address.startswith(("127.", "0."))
