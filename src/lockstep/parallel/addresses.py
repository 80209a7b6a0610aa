"""This host's addresses: which of them the other ranks can reach, and which interface carries them."""

from __future__ import annotations

import fcntl
import socket
import struct

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
