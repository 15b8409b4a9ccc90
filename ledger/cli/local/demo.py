"""`demo`: a small cloud on this machine, with a crash to watch."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.base import PORT, PlainCommand, note
from ledger.cli.errors import CliError, ExitCode, usage

if TYPE_CHECKING:
    from ledger.trial.cloud import TrialCloud
    from ledger.trial.demo import Story, Summary

WATCH_S = 0.5
RESTART_AFTER_S = 3.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

NEXT = """
It stays up until Ctrl-C.  In another terminal:

  export LEDGER_URL={url} LEDGER_TOKEN={token}
  {me} history volume {volume}
  {me} attachment list --all
  {me} event tail

In a browser, with that token: {url}/ui/

With the unmodified OpenStack client:

  export OS_CLIENT_CONFIG_FILE={clouds} OS_CLOUD=demo
  openstack server list
  openstack server add volume {other} {spare}
  openstack server volume list {other}
  openstack server remove volume {other} {spare}

Servers that move, and their volumes with them:

  {me} server create mail-1 --volume {boot} --host {host} --wait
  {me} server add volume {other} {spare_id} --wait && \\
    {me} server migrate {other} --live-migration --wait
  {me} server shelve {other} --wait && {me} server unshelve {other} --wait && \\
    {me} server remove volume {other} {spare_id} --wait
  {me} top

A host that is lost, so far as anybody can tell, and then comes back:

  kill -STOP {agent} && \\
    {me} host fence {host} --force --reason "no answer" --evidence "powered off" && \\
    {me} server evacuate mail-1 --wait && {me} server start mail-1 --wait && \\
    kill -CONT {agent} && {me} host unfence {host} --reason "it is back"

An incident for the night shift: Cinder refuses to delete the attachment, so the detach
parks; then the cause is removed, and the operation is retried.

  echo '[{{"call": "attachment_delete", "do": "fail", "status": 400, "count": null}}]' \\
    | {me} sim fault set - --cinder {cinder}
  openstack server add volume {other} {spare} && openstack server remove volume {other} {spare}
  {me} operation list --parked
  {me} operation show OPERATION
  echo '[]' | {me} sim fault set - --cinder {cinder}
  {me} operation retry OPERATION --reason "Cinder is mended" --wait

Kill what you like: it is started again after {pause:g} s.

{pids}
"""


class _Interrupted(BaseException):
    """The user stops the demo; not an Exception, so that nothing takes it for an error."""


class Demo(PlainCommand):
    """Run a small cloud on this machine, and show what happens after a crash.

    It starts PostgreSQL, a simulated Cinder, the service and two agents.  It attaches a volume,
    kills the agent in the middle and starts it again, detaches the volume, plants drift, finds and
    repairs it, and prints the history.  Then it stays up until Ctrl-C, with servers to move and a
    volume to boot from.  Exit 0 only if every check passed.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--once", action="store_true", help="end after the last step")
        add(
            "-f",
            "--format",
            choices=("text", "json"),
            default="text",
            help="of the summary, with --once",
        )
        add("--port", type=PORT, help="port of the ledger (default: a free one)")
        add("--cinder-port", type=PORT, help="port of the simulated Cinder (default: a free one)")
        add(
            "--state-dir",
            type=Path,
            metavar="DIRECTORY",
            help="keep all files in this empty directory (default: a temporary one)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from host_agent.shared.platform import logs
        from ledger.trial import demo

        if parsed_args.format == "json" and not parsed_args.once:
            raise usage("-f json is the summary of the whole: it needs --once.")
        logs.set_up("error")
        self._out = sys.stderr if parsed_args.format == "json" else self.app.stdout
        summary = demo.Summary()
        with _home(parsed_args.state_dir, summary) as home, _stoppable() as stopped:
            demo.run(
                home,
                self._say,
                summary,
                port=parsed_args.port,
                cinder_port=parsed_args.cinder_port,
                stay=None if parsed_args.once else self._stay,
            )
        if stopped and parsed_args.once:
            raise CliError("the demo was stopped before its end.", ExitCode.UNEXPECTED)
        if stopped and not summary.failed:
            return ExitCode.OK
        if parsed_args.format == "json":
            data = {**summary.to_json(), "kept": None if summary.ok else str(home)}
            print(json.dumps(data, indent=2), file=self.app.stdout, flush=True)
        if not summary.ok:
            why = summary.error or str(summary)
            raise CliError(why, ExitCode.UNEXPECTED, f"The logs are in {home}")
        return ExitCode.OK

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _stay(self, cloud: TrialCloud, story: Story) -> None:
        """Until told to stop; what was killed is started again."""
        other, spare, boot = cloud.guests[1], cloud.volumes[1], cloud.volumes[3]
        host = cloud.guests[0].host
        pids = "\n".join(f"  {p.pid:>8}  {name}  (log: {p.log})" for name, p in _of(cloud))
        self._say(
            NEXT.format(
                url=cloud.url,
                token=cloud.operator_token,
                me=_me(),
                volume=story.volume.id,
                clouds=cloud.clouds_yaml,
                other=other.name,
                spare=spare.name,
                spare_id=spare.id,
                boot=boot.id,
                host=host,
                agent=cloud.processes[host].pid,
                cinder=cloud.cinder_url,
                pause=RESTART_AFTER_S,
                pids=pids,
            )
        )
        while True:
            time.sleep(WATCH_S)
            for name, process in _of(cloud):
                if process.exit_code is not None:
                    self._say(f"{name} has ended ({process.exit_code}); it is started again.")
                    time.sleep(RESTART_AFTER_S)
                    process.start()
                    self._say(f"{name} runs again, process {process.pid}.")


def _of(cloud: TrialCloud) -> Any:
    return cloud.processes.items()


def _me() -> str:
    """How this program was called, if a shell would not find it by its name."""
    name = "attachment-ledger"
    if shutil.which(name):
        return name
    called = Path(sys.argv[0])
    return f"{sys.executable} -m ledger" if called.suffix == ".py" else str(called)


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """SIGINT, SIGTERM and SIGHUP unwind what was begun; a second one does not disturb that.

    The list that is yielded holds the signal, if one came.
    """
    stopped: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        stopped.append(number)
        raise _Interrupted

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield stopped
    except _Interrupted:
        note("\nEverything is stopped.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _home(given: Path | None, summary: Summary) -> Iterator[Path]:
    """The directory of everything: the one given, or a temporary one.

    The temporary one is removed at the end, unless something went wrong: then its logs
    are wanted.
    """
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        if any(given.iterdir()):
            raise usage(f"{given} is not empty.", "Name an empty or a new --state-dir.")
        yield given.absolute()
        return
    home = Path(tempfile.mkdtemp(prefix="attachment-ledger-demo-"))
    home.chmod(0o711)  # as root PostgreSQL runs as another account, which must pass
    try:
        yield home
    except Exception:
        note(f"The logs are in {home}")
        raise
    went_wrong = bool(summary.checks or summary.error) and not summary.ok
    if not went_wrong:
        shutil.rmtree(home, ignore_errors=True)
