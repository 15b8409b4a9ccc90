"""Examples of command lines, in `--help` and in docs/commands.md; a test types each."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.words.acts import ACTS

#: By command: what is typed behind it, and what for; an act's stand in its row.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    **{act.command: act.examples for act in ACTS},
    "operation list": (
        ("--parked", "what needs a person"),
        ("--server db-1 --long", "what was done to one server, in all columns"),
        ("--parked -f value -c ID", "whole ids, for a script"),
    ),
    "operation show": (("44e1", "one operation, by the beginning of its id"),),
    "top": (("", "watch running operations, parked first"), ("--once", "one screen, for a script")),
    "survey": (
        ("--os-cloud admin", "what differs between Nova and Cinder, of a running cloud"),
        ("--os-cloud admin -f json", "the same with what mends each, for a script"),
        ("--os-cloud admin --hosts hv1.json hv2.json --html survey.html", "with two hosts' word"),
    ),
    "history volume": (
        ("63383fde", "all that happened to a volume"),
        ("63383fde --at 2026-11-17T14:02", "what had happened until then"),
    ),
    "attachment list": (
        ("--server db-1", "what a server has"),
        ("--host hv1 --at 2026-11-17T14:02", "what was on a host at a moment"),
    ),
    "volume list": (("--host hv1", "the volumes that a host holds, and for which servers"),),
    "server add volume": (("db-1 63383fde-248a-4caa-bcc5-35766d9c8d28 --wait", "attach"),),
    "server remove volume": (("db-1 63383fde --wait", "detach"),),
    "server migrate": (("db-1 --live-migration --host hv2 --wait", "while the guest runs"),),
    "server evacuate": (("db-1 --wait", "its own host has been fenced"),),
    "drift list": (("--severity critical", "what differs, the worst of it"),),
    "history server": (("db-1", "all that was done to a server"),),
    "history attachment": (("7c1e --at 2026-11-17T14:02", "one attachment, until then"),),
    "history host": (("hv1 --limit 20", "the last that happened on a host"),),
    "history operation": (("44e1 --long", "an operation, its bookkeeping, too"),),
    "attachment show": (("7c1e --at 2026-11-17T14:02", "one attachment as it was then"),),
    "attachment swap": (
        (
            "db-1 63383fde 0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9 --wait",
            "to another volume, while the guest runs",
        ),
    ),
    "attachment refresh": (("--host hv1 --wait", "after the portals of its storage have changed"),),
    "attachment convert": (("db-1 --wait", "from Cinder's old calls to the new ones"),),
    "operation wait": (
        ("44e1 --timeout 3600", "until it is over or parked; the exit code says which"),
    ),
    "remnant list": (("--host hv1", "what was left on a host"),),
    "request show": (
        (
            "req-b18f3e17-d785-4363-8e7f-460d0f9b6fbd",
            "what a request led to, or why it was refused",
        ),
    ),
    "drift show": (("9f2c", "what each party says, and what to type"),),
    "drift looks": (("--state under_way", "how far they are"),),
    "drift look": (("c0de", "what it found, suppressed, and could not see"),),
    "drift classes": (("-f json", "all that can differ, with its meaning"),),
    "server list": (("--host hv1", "the servers of a host"),),
    "server show": (("db-1", "what it is, and what is being done to it"),),
    "server create": (
        (
            "db-2 --volume 63383fde-248a-4caa-bcc5-35766d9c8d28 --memory 2048",
            "boot from a volume",
        ),
    ),
    "server delete": (("db-2 --wait", "wait until its volumes are free"),),
    "server forget": (
        ('db-1 --reason "lost with its host"', "show what that would release"),
        ('db-1 --reason "lost with its host" --apply --wait', "do it"),
    ),
    "server start": (("db-1 --wait", "start it"),),
    "server stop": (("db-1 --wait", "shut it down"),),
    "server pause": (("db-1", "halt it in memory"),),
    "server unpause": (("db-1", "have it go on"),),
    "server reboot": (("db-1 --hard --wait", "off and on, its volumes connected again"),),
    "server rebuild": (
        ("db-1 --wait", "made anew, with the volumes it has"),
        (
            "db-1 --image 1bea47ed-f6a9-463b-b423-14b9cca9ad27 --wait",
            "its root volume written anew from an image",
        ),
    ),
    "server resize": (("db-1 --flavor c2.m4096 --wait", "2 vCPUs and 4096 MiB"),),
    "server resize confirm": (("db-1 --wait", "keep the new host and size"),),
    "server resize revert": (("db-1 --wait", "go back"),),
    "server shelve": (("db-1 --wait", "off its host, its volumes kept"),),
    "server unshelve": (("db-1 --host hv2 --wait", "back, on this host"),),
    "server lock": (('db-1 --reason "is being restored"', "keep its users from changing it"),),
    "server unlock": (("db-1", "let them again"),),
    "server reset-state": (("db-1 --state active", "take its error off"),),
    "server migration list": (("--server db-1", "where it has moved"),),
    "server migration show": (("db-1 3", "how far one is"),),
    "server migration abort": (("db-1 3 --wait", "end a live one, if it is not too late"),),
    "server event list": (("db-1", "what was asked of it, as Nova tells it"),),
    "server event show": (
        ("db-1 req-b18f3e17-d785-4363-8e7f-460d0f9b6fbd", "how one of these ended"),
    ),
    "host list": (("", "whose agent is in contact, fenced, or suspect"),),
    "host show": (("hv1", "what it holds, and what waits for it"),),
    "host disable": (('hv1 --reason "kernel update"', "no servers come to it"),),
    "host enable": (("hv1", "they may come again"),),
    "flow list": (("", "what the ledger can do"),),
    "flow verify": (("", "that this version reads your log, before you install it"),),
    "flow show": (
        ("attach", "the steps of one, and what undoes each"),
        ("live_migrate --diagram", "drawn"),
    ),
    "event list": (
        ("--after 1200 --limit 50", "a part of the log"),
        ("--topic Host.Fenced", "which hosts were fenced, when and by whom"),
    ),
    "event tail": (("-f json", "what happens, as it happens"),),
    "event checkpoint": (("> checkpoint.json", "where the log ends, to be kept elsewhere"),),
    "event sign": (("--key log.pem --to /checkpoints", "how the log ends, for a timer"),),
    "event prove": (
        ("1200 --from /checkpoints > event.tlog-proof", "one event, for who sees no other"),
        ("--since old.checkpoint --from /checkpoints", "that the log has only grown since"),
    ),
    "event verify": (("--checkpoint checkpoint.json", "that nothing up to there was changed"),),
    "event archive": (
        (
            "--before 2026-01 --to /archive --detach",
            "closed months into files, and out of the table",
        ),
    ),
    "event erase-person": (
        ("3f2a... --dry-run", "what is known of a user of Keystone"),
        ('3f2a... --reason "has left, asked for it"', "forget who that was"),
    ),
    "event restore": (("--from /archive", "all of that back"),),
    "forward": (
        (
            "siem --to https://siem.example.org/ledger --format ocsf --token-file /run/token",
            "what happens, to a SIEM",
        ),
        ("audit --to file:///var/log/ledger.cadf --format cadf", "into a file that is rotated"),
    ),
    "projection list": (("", "how far each is, and what holds it back"),),
    "projection rebuild": (("operations", "rebuild one while the old one is read"),),
    "db status": (("--config ledger.toml", "0 if the schema is the one of this version"),),
    "db check": (("--config ledger.toml", "what to do about the schema"),),
    "db preflight": (("--config ledger.toml -f json", "whether all is idle, for a script"),),
    "db upgrade": (("--config ledger.toml", "bring it to this version"),),
    "db restored": (
        ("--dry-run", "what it would do, before the service is started"),
        ('--reason "disk of db1 lost"', "after a backup was put back"),
    ),
    "db federate": (("cells.conf --dry-run", "the SQL that makes views of several ledgers"),),
    "db grant": (("auditor alice", "give a role what auditors need"),),
    "config show": (("--config ledger.toml", "the settings in force, without secrets"),),
    "complete": (("--shell zsh", "completion, for the start-up file of a shell"),),
    "demo": (("--once -f json", "a crash, a drift and their ends, as one summary"),),
    "sim cinder": (("--port 8776 --faults faults.json", "a Cinder that fails as it is told"),),
    "sim fault list": (("--cinder http://127.0.0.1:8776", "its faults"),),
    "sim fault set": (("faults.json --cinder http://127.0.0.1:8776", "give it others"),),
    "serve": (
        ("--config ledger.toml", "the service, on the database that the settings name"),
        ("--trial", "a service whose database is gone at the end"),
    ),
}


def lines(command: str, called: str) -> Iterator[str]:
    """What can be typed, each below what for; `called`: the command, as it is typed there."""
    for typed, what in EXAMPLES.get(command, ()):
        yield f"# {what}"
        yield f"{called} {typed}".rstrip()
