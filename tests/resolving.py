"""A program of ours for which a name has several addresses, without a name server.

`python -m tests.resolving NAME=ADDRESS,ADDRESS MODULE ...`
"""

from __future__ import annotations

import runpy
import socket
import sys
from typing import Any

_true = socket.getaddrinfo


def resolve(name: str, *addresses: str) -> Any:
    """`getaddrinfo` that knows `name`."""

    def found(host: Any, *args: Any, **kwargs: Any) -> list[Any]:
        hosts = addresses if host == name else (host,)
        return [each for host in hosts for each in _true(host, *args, **kwargs)]

    return found


if __name__ == "__main__":
    _, _named, _module, *_arguments = sys.argv
    _name, _, _addresses = _named.partition("=")
    socket.getaddrinfo = resolve(_name, *_addresses.split(","))
    sys.argv = [_module, *_arguments]
    runpy.run_module(_module, run_name="__main__", alter_sys=True)
