"""A server's size, and the name that says it: "c2.m2048" is 2 vCPUs and 2048 MiB.

Every size has one, so none needs a flavor; the settings may give some of them others' names.
"""

from __future__ import annotations

import re

Size = tuple[int, int]  # vCPUs, and memory in MiB

#: Of a server whose definition does not say how large it is.
NO_FLAVOR = "unknown"
#: What a flavor of the settings may be called, and why.
NAMES = (
    "a flavor's name, or id, has 1 to 255 printable characters, no space at either end, and no "
    "'/', '?' or '#', for it stands in addresses"
)

_SAYS_SIZE = re.compile(r"c([1-9]\d{0,3})\.m([1-9]\d{0,7})\Z", re.ASCII)
_NAME = re.compile(r"(?=\S)[^\x00-\x1f\x7f/?#]{1,255}(?<=\S)\Z")


def flavor_id(vcpus: int, memory_mb: int) -> str:
    """The name that says this size."""
    return f"c{vcpus}.m{memory_mb}" if vcpus and memory_mb else NO_FLAVOR


def size_named(name: str) -> Size | None:
    """The size that a name says; None if it says none."""
    match = _SAYS_SIZE.match(name)
    return (int(match[1]), int(match[2])) if match else None


def is_name(text: str) -> bool:
    """Whether a flavor may be called so."""
    return _NAME.match(text) is not None and text not in {".", "..", "detail", NO_FLAVOR}
