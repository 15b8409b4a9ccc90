"""A guest that writes all the time, and the proof that nothing it was told is written got lost.

Sector FIRST + n of the disk holds the number n as text.  The guest writes one sector after
the other, each flushed to the volume before it takes down that it is written.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.lab.guest import COMMAND_S, Console, wait_until

BYTES_PER_SECTOR = 512
#: Beyond what a boot loader or a partition table needs.
FIRST = 131072

_LOOP = """n=0; while [ ! -e {stop} ]; do n=$((n+1));
 echo $n | dd of=/dev/{node} bs=512 seek=$(({first}+n)) conv=fsync,sync,notrunc 2>/dev/null ||
 {{ echo failed > {state}; break; }};
 echo $n > {state}.new; mv {state}.new {state}; done; rm {stop}"""


class Writer:
    """Writes to one disk of a guest from now on, until stopped."""

    def __init__(self, console: Console, node: str, first: int = FIRST) -> None:
        self.first = first
        self._state, self._stop = f"/tmp/written-{node}", f"/tmp/stop-{node}"
        loop = _LOOP.format(node=node, first=first, state=self._state, stop=self._stop)
        console.run(f"echo 0 > {self._state}; ({loop}) >/dev/null 2>&1 &".replace("\n", ""))

    def written(self, console: Console) -> int:
        """The last number the guest knows to be on the volume."""
        text = console.run(f"cat {self._state}")
        if not text.isdigit():
            raise AssertionError(f"the guest could not write: {text!r}")
        return int(text)

    def wait_progress(self, console: Console, more: int = 10) -> int:
        """Until so many more are written; the last of them."""
        target = self.written(console) + more
        wait_until(lambda: self.written(console) >= target, "the guest to write on", COMMAND_S)
        return target

    def stop(self, console: Console) -> int:
        """The last number it wrote."""
        console.run(f"touch {self._stop}; while [ -e {self._stop} ]; do sleep 0.1; done")
        return self.written(console)


def assert_written(read: Callable[[int, int], bytes], up_to: int, first: int = FIRST) -> None:
    """`read` (offset, length) shows every number up to this one in its place."""
    data = read((first + 1) * BYTES_PER_SECTOR, up_to * BYTES_PER_SECTOR)
    sectors = [data[at : at + BYTES_PER_SECTOR] for at in range(0, len(data), BYTES_PER_SECTOR)]
    found = [sector.rstrip(b"\0").decode(errors="replace").strip() for sector in sectors]
    lost = [n for n in range(1, up_to + 1) if found[n - 1 : n] != [str(n)]]
    assert not lost, f"{len(lost)} of {up_to} numbers are not on the volume: {lost[:9]} ..."
