"""Running simulations beside a test or the demo: servers in a background thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from host_agent.shared.faults import Faults
from ledger.trial.cinder import server as cinder
from ledger.trial.cinder import views as cinder_views
from ledger.trial.cinder.compute import ComputeCheck
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.store import CinderStore

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RunningCinder:
    """A simulated Cinder that serves; its model may be looked at and changed at will."""

    url: str  # the base, without /v3
    model: CinderModel
    faults: Faults
    compute: ComputeCheck

    @property
    def endpoint(self) -> str:
        """What a noauth client is given."""
        return f"{self.url}/v3"


@contextmanager
def running_cinder(
    model: CinderModel | None = None,
    *,
    faults: Faults | None = None,
    compute_endpoint: str | None = None,
    store_path: Path | None = None,
    max_version: cinder_views.Microversion = cinder_views.MAX_VERSION,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[RunningCinder]:
    """Serve a simulated Cinder at `host` for the length of the `with`.

    The compute endpoint may also be set later: `running.compute.endpoint = url`.
    """
    model = CinderModel() if model is None else model
    faults = Faults() if faults is None else faults
    compute = ComputeCheck(compute_endpoint)
    store = CinderStore(store_path) if store_path else None
    if store is not None:
        store.load(model)
    thread = _ServerThread(
        lambda: cinder.make_app(
            model, faults=faults, compute=compute, store=store, max_version=max_version
        ),
        host,
        port,
    )
    with thread.running() as url:
        yield RunningCinder(url=url, model=model, faults=faults, compute=compute)


class _ServerThread:
    """An event loop in a thread that serves one application."""

    def __init__(self, make_app: Callable[[], web.Application], host: str, port: int) -> None:
        self._make_app = make_app
        self._host, self._port = host, port
        self._url = ""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = self._make_app()
        await cinder.serve(self._host, self._port, app=app, ready=self._came_up, stop=self._stop)

    def _came_up(self, url: str) -> None:
        self._url = url
        self._ready.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._failure = error
        finally:
            self._ready.set()

    @contextmanager
    def running(self) -> Iterator[str]:
        thread = threading.Thread(target=self._run, name="simulated-cinder", daemon=True)
        thread.start()
        if not self._ready.wait(START_DEADLINE_S) or self._failure is not None:
            raise RuntimeError("the simulated Cinder did not start") from self._failure
        try:
            yield self._url
        finally:
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(STOP_DEADLINE_S)
            if thread.is_alive():
                raise RuntimeError("the simulated Cinder did not stop")
