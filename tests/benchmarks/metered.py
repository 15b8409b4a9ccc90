"""Run one of our programs and account its CPU time to parts, by seams between them.

    python -m tests.benchmarks.metered FILE ledger serve --config ...

Each seam is a function; what runs inside of it is its part's, until it calls another seam.
What runs outside of all seams is the thread's own part.  Times are CPU times of threads, so
that waiting costs nothing.  Sent SIGUSR1, the process writes the seconds of each part since
its start, and the calls of its seams, into FILE, as JSON.  The accounting itself costs some
percent: take shares from it, and the sum from a process without it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import runpy
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

#: (module, function) -> part.  Functions that are imported by name elsewhere do not work.
SERVICE = {
    ("ledger.log.writer", "Writer.append"): "append",
    ("ledger.log.recorder", "LedgerRecorder.select_streams"): "aggregates: reading the log",
    ("ledger.core.requests", "Requests.attach"): "aggregates",
    ("ledger.core.requests", "Requests.detach"): "aggregates",
    ("ledger.core.service", "Service.report"): "aggregates",
    ("ledger.core.service", "Service.carry_on"): "aggregates",
    ("ledger.core.service", "Service.others"): "aggregates",
    ("ledger.core.service", "Service.register"): "registration",
    ("ledger.core.service", "Service.unchanged"): "registration",
    ("ledger.core.dispatcher", "Dispatcher.run"): "dispatcher",
    ("ledger.core.dispatcher", "Dispatcher._hold"): "dispatcher",
    ("ledger.core.wakeups", "Wakeups._run"): "command delivery",
    ("ledger.agents.batches", "AgentBatcher._look"): "command delivery",
    ("projections.reads.queries", "Queries._all"): "HTTP: reading the tables",
    ("host_agent.shared.cinder.session", "Caller._call"): "Cinder's client",
    ("host_agent.shared.cinder.session", "Caller._once"): "Cinder's client",
}
AGENT = {
    ("host_agent.executor", "Executor._run"): "agent",
    ("host_agent.line.client", "LedgerClient.call"): "agent: its connection to the ledger",
    ("host_agent.shared.cinder.session", "Caller._call"): "Cinder's client",
    ("host_agent.shared.cinder.session", "Caller._once"): "Cinder's client",
    ("host_agent.simulated.host_state", "HostState.read"): "simulated host",
    ("host_agent.simulated.adapters", "SimulatedBrick.connector"): "simulated host",
    ("host_agent.simulated.adapters", "SimulatedBrick.connect"): "simulated host",
    ("host_agent.simulated.adapters", "SimulatedBrick.disconnect"): "simulated host",
    ("host_agent.simulated.hypervisor", "SimulatedHypervisor.domain"): "simulated host",
    ("host_agent.simulated.hypervisor", "SimulatedHypervisor.domains"): "simulated host",
    ("host_agent.simulated.hypervisor", "SimulatedHypervisor.attach"): "simulated host",
    ("host_agent.simulated.hypervisor", "SimulatedHypervisor.detach"): "simulated host",
}
SEAMS = {"ledger": SERVICE, "host_agent": AGENT}
#: What a thread does outside of all seams, by what its name begins with.
THREADS = {
    "ledger": {"MainThread": "HTTP", "projections": "projection", "": "threads"},
    "host_agent": {"line": "agent: its connection to the ledger", "": "agent"},
}


class _Account:
    """One thread's CPU time, by part."""

    def __init__(self, thread: threading.Thread) -> None:
        parts = THREADS[sys.argv[0]]
        self.parts = [next(parts[start] for start in parts if thread.name.startswith(start))]
        self.spent_ns: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.last_ns = 0

    def charge(self, now_ns: int) -> None:
        self.spent_ns[self.parts[-1]] += now_ns - self.last_ns
        self.last_ns = now_ns


_ACCOUNTS: dict[int, _Account] = {}  # by thread


def _account() -> _Account:
    account = _ACCOUNTS.get(threading.get_ident())
    if account is None:
        thread = threading.current_thread()
        account = _ACCOUNTS.setdefault(threading.get_ident(), _Account(thread))
    return account


def _enter(part: str) -> None:
    account = _account()
    account.charge(time.thread_time_ns())
    account.parts.append(part)


def _leave() -> None:
    account = _account()
    account.charge(time.thread_time_ns())
    account.parts.pop()


@types.coroutine
def _stepped(coroutine: Any, part: str) -> Generator[Any, Any, Any]:
    """Await a coroutine, charging what it does between its waits."""
    step, value = coroutine.send, None
    while True:
        _enter(part)
        try:
            waits_for = step(value)
        except StopIteration as stop:
            return stop.value
        finally:
            _leave()
        try:
            step, value = coroutine.send, (yield waits_for)
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            step, value = coroutine.throw, error


def _metered(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await _stepped(function(*args, **kwargs), part)

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        _account().calls[part] += 1
        _enter(part)
        try:
            return function(*args, **kwargs)
        finally:
            _leave()

    return called


def _install(program: str) -> None:
    for (module, name), part in SEAMS[program].items():
        kind, method = name.split(".")
        owner = getattr(importlib.import_module(module), kind)
        setattr(owner, method, _metered(getattr(owner, method), part))


def _write(file: Path) -> None:
    total: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for thread in threading.enumerate():
        assert thread.ident is not None, "it runs"
        account = _ACCOUNTS.setdefault(thread.ident, _Account(thread))
        clock = time.pthread_getcpuclockid(thread.ident)
        account.charge(time.clock_gettime_ns(clock))
        total.update(account.spent_ns)
    for account in list(_ACCOUNTS.values()):
        calls.update(account.calls)
    seconds = {part: spent / 1e9 for part, spent in total.items()}
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({"seconds": seconds, "calls": calls}))
    draft.replace(file)


def main() -> None:
    _, file, program, *arguments = sys.argv
    sys.argv = [program, *arguments]
    _install(program)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: _write(Path(file)))
    runpy.run_module(program, run_name="__main__")


if __name__ == "__main__":
    main()
