"""Row 9 beside the code of another working tree, in one run and in turns.

    python tests/benchmarks/beside.py TREE [TREE ...] [--rounds 20] [--cycles 5] [--pause 1.2]

Each tree has its .venv; the first is what the others are compared with.  All of them run at
the same time, each with a service, an agent, a Cinder and a PostgreSQL of its own, and do some
cycles in turn; so a machine that is busy with something else is so for all of them.  CPU is
per attach and detach, as medians of the rounds; ratios are medians of the rounds' ratios.
What the agent's process does in place of a host is left out: its share is metered in a pass
before the rounds, as for row 9.  Messages are counted from the first round to the last.  With a
pause (seconds) after each attach and detach the host tells of each change of its guest, as in a
cloud; what is spent then by waiting is in the figures of all trees.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PARTS = ("service", "agent", "PostgreSQL")
#: Of /metrics: what is counted, by how its lines begin.
COUNTED = {"requests": "ledger_http_requests_total{", "appends": "ledger_append_seconds_count"}
WARM_UP_CYCLES = 15
METERED_CYCLES = 40


def measure(pause_s: float) -> None:
    """In the tree that is the working directory: for each line of stdin so many cycles."""
    from tests.benchmarks import cycle
    from tests.benchmarks.servers import server

    with server() as dsn, tempfile.TemporaryDirectory() as home:
        with cycle.running(Path(home), dsn, metered=True) as world:
            share = _share_in_place_of_a_host(cycle, world)
        with cycle.running(Path(home), dsn) as world:
            world.cycles(WARM_UP_CYCLES)
            _say("ready")
            for line in sys.stdin:
                world.client.close()  # the service has, where the others' turns took long
                before = _cpu_s(cycle, world)
                for act in (world._attach, world._detach) * int(line):
                    world._wait_for(act())
                    time.sleep(pause_s)  # what is measured: a guest that is looked at in between
                after = _cpu_s(cycle, world)
                spent = [(b - a) * 1e3 / int(line) for a, b in zip(before, after, strict=True)]
                not_ours = share * (spent[0] + spent[1])
                spent[1] -= not_ours
                _say(json.dumps({"cpu_ms": spent, "not_ours_ms": not_ours, **_counts(world)}))


def _share_in_place_of_a_host(cycle: Any, world: Any) -> float:
    """Of the CPU of service and agent."""

    def seconds() -> Counter[str]:
        parts = world.parts()  # seconds; and calls, but for trees of long ago
        found: Counter[str] = parts[0] if isinstance(parts, tuple) else parts
        return found

    world.cycles(WARM_UP_CYCLES)
    before = seconds()
    world.cycles(METERED_CYCLES)
    spent = seconds()
    spent.subtract(before)
    return sum(spent[part] for part in cycle.NOT_OURS) / sum(spent.values())


def _cpu_s(cycle: Any, world: Any) -> list[float]:
    own = [cycle._cpu_of(process.pid) for process in (world.service, world.agent)]
    return [*own, world._database_s()]


def _counts(world: Any) -> dict[str, float]:
    line = http.client.HTTPConnection(world.client.host, world.client.port)
    line.request("GET", "/metrics")
    page = line.getresponse().read().decode().splitlines()
    line.close()
    return {
        what: sum(float(each.rpartition(" ")[2]) for each in page if each.startswith(start))
        for what, start in COUNTED.items()
    }


@contextmanager
def measuring(tree: Path, pause_s: float) -> Iterator[subprocess.Popen[str]]:
    """This program in a tree, ready."""
    command = [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), "--measure"]
    command += ["--pause", str(pause_s)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=tree, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while (line := process.stdout.readline()) != "ready\n":
            assert line, f"it does not run in {tree}"
        yield process
    finally:
        process.stdin.close()
        process.wait(60)


def _asked(process: subprocess.Popen[str], cycles: int) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{cycles}\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def compare(trees: list[Path], rounds: int, cycles: int, pause_s: float) -> None:
    found: list[list[dict[str, Any]]] = [[] for _ in trees]
    with ExitStack() as stack:
        running = [stack.enter_context(measuring(tree, pause_s)) for tree in trees]
        turn = list(zip(running, found, strict=True))
        for _ in range(rounds):
            for process, results in turn:
                results.append(_asked(process, cycles))
            turn.reverse()
    for tree, results in zip(trees, found, strict=True):
        _say(f"{tree}: {_told(results, found[0], (rounds - 1) * cycles)}")


def _told(results: list[dict[str, Any]], first: list[dict[str, Any]], cycles: int) -> str:
    spent = [result["cpu_ms"] for result in results]
    parts = [statistics.median(part) for part in zip(*spent, strict=True)]
    shown = [f"{name} {ms:.1f}" for name, ms in zip(PARTS, parts, strict=True)]
    pairs = zip(spent, (result["cpu_ms"] for result in first), strict=True)
    ratio = statistics.median(sum(own) / sum(other) for own, other in pairs)
    counts = [f"{(results[-1][what] - results[0][what]) / cycles:.1f} {what}" for what in COUNTED]
    total = statistics.median(map(sum, spent))
    left_out = statistics.median(result["not_ours_ms"] for result in results)
    counts.append(f"{left_out:.1f} ms in place of a host left out")
    return f"CPU {total:.1f} ms ({', '.join(shown)}), {ratio:.2f} x; {', '.join(counts)}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.path[0] = str(Path.cwd())  # the tree's own benchmark, not the one beside this file
        measure(arguments.pause)
    else:
        compare(arguments.trees, arguments.rounds, arguments.cycles, arguments.pause)


if __name__ == "__main__":
    main()
