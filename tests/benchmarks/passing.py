"""What passing on adds: python -m tests.benchmarks.passing [REQUESTS].

A Nova that answers at once is asked directly and through the service, in turns, one request at a
time: one that closes each connection, as uWSGI does, and one that keeps them, as what is in front
of Nova does; both without and with TLS.  Asked directly is the first.  All of it shares one thread,
so what the service adds is told as more than it is.  On a machine that others use, too, read the
CPU's.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from uuid import uuid4

from yarl import URL

from tests.authority import Authority
from tests.benchmarks.servers import server
from tests.doubles.recording_nova import RecordingNova, recording_nova, said
from tests.doubles.simulated_keystone import running_keystone
from tests.service.passing_world import Both, both_worlds

REQUESTS = 1_000
WARM_UP = 50
PATHS = {
    "no server named": "/v2.1/os-keypairs",
    "a server": f"/v2.1/servers/{uuid4()}",
    "Cinder's question": f"/v2.1/servers/{uuid4()}/os-volume_attachments/{uuid4()}",
}
BODY = b"{" + b" " * 2_000 + b"}"


async def asked(port: int, path: str) -> tuple[float, float]:
    """From the connection to the last byte, as CLI runs and Cinder ask: ms, and ms of CPU."""
    began, cpu = time.perf_counter(), time.thread_time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: x\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return (time.perf_counter() - began) * 1000, (time.thread_time() - cpu) * 1000


async def main(requests: int) -> None:
    async with AsyncExitStack() as stack:
        novas = {name: await stack.enter_async_context(each) for name, each in _novas(stack)}
        for name, nova in novas.items():
            nova.answers["/"], nova.keeps = said(200, BODY), "kept" in name
        closes = next(iter(novas.values()))
        keystone = stack.enter_context(running_keystone())
        dsn = stack.enter_context(server())
        both = await stack.enter_async_context(both_worlds(dsn, keystone, closes, insecure=True))
        for path in PATHS.items():
            await measured(both, novas, path, requests)


def _novas(
    stack: AsyncExitStack,
) -> Iterator[tuple[str, AbstractAsyncContextManager[RecordingNova]]]:
    home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    pair = Authority(home / "authority").pair("IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    for each in ("", "TLS, "):
        for kind in ("closed", "kept"):
            yield f"{each}{kind}", recording_nova(tls if each else None)


async def measured(
    both: Both, novas: dict[str, RecordingNova], path: tuple[str, str], requests: int
) -> None:
    """Prints what each way adds to asking directly, all in turns."""
    passing, [closes, *_] = both.api.components.nova, novas.values()
    assert passing is not None
    ours, direct = int(both.api.http.port or 0), int(closes.url.rpartition(":")[2])
    rounds = []
    for _ in range(WARM_UP + requests):
        times = [await asked(direct, path[1])]
        for nova in novas.values():
            passing._url = URL(nova.url)
            times.append(await asked(ours, path[1]))
        rounds.append(times)
    for what, nth in (("ms", 0), ("ms of CPU", 1)):
        taken = [[each[nth] for each in times] for times in rounds[WARM_UP:]]
        bare = statistics.median(times[0] for times in taken)
        sys.stdout.write(f"{path[0]}: direct {bare:.2f} {what}\n")
        for way, name in enumerate(novas, 1):
            added = statistics.quantiles((times[way] - times[0] for times in taken), n=20)
            spread = f"5 %: {added[0]:.2f}, 95 %: {added[18]:.2f}"
            sys.stdout.write(f"  {name}: {added[9]:.2f} {what} added, {spread}\n")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS))
