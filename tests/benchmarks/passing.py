"""What passing on adds: python -m tests.benchmarks.passing [REQUESTS].

A Nova that answers at once is asked directly and through the service, in turns, one request at a
time.  All of it shares one thread, so what the service adds is told as more than it is.  On a
machine that others use, too, read the CPU's.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack
from uuid import uuid4

from tests.benchmarks.servers import server
from tests.doubles.recording_nova import recording_nova, said
from tests.doubles.simulated_keystone import running_keystone
from tests.service.passing_world import both_worlds

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
        nova = await stack.enter_async_context(recording_nova())
        nova.answers["/"] = said(200, BODY)
        keystone = stack.enter_context(running_keystone())
        dsn = stack.enter_context(server())
        both = await stack.enter_async_context(both_worlds(dsn, keystone, nova))
        ours, novas = int(both.api.http.port or 0), int(nova.url.rpartition(":")[2])
        for name, path in PATHS.items():
            for _ in range(WARM_UP):
                await asked(ours, path)
            pairs = [(await asked(novas, path), await asked(ours, path)) for _ in range(requests)]
            for what, nth in (("", 0), (" of CPU", 1)):
                direct, passed = (
                    statistics.median(each[nth] for each in way) for way in zip(*pairs, strict=True)
                )
                added = statistics.quantiles((b[nth] - a[nth] for a, b in pairs), n=20)
                sys.stdout.write(
                    f"{name}: direct {direct:.2f} ms{what}, passed on {passed:.2f}; "
                    f"added {added[9]:.2f}, 5 %: {added[0]:.2f}, 95 %: {added[18]:.2f}\n"
                )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS))
