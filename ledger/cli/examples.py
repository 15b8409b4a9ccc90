"""Examples of command lines, in `--help` and in docs/commands.md; a test types each."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.words.acts import ACTS

#: By command: what is typed behind it, and what for; an act's stand in its row.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    **{act.command: act.examples for act in ACTS},
    "operation list": (
        ("--parked", "what needs an operator"),
        ("--server db-1 --long", "the operations of one server, in all columns"),
        ("--parked -f value -c ID", "whole ids, for a script"),
    ),
    "operation show": (("44e1", "one operation, by the beginning of its id"),),
    "top": (("", "watch running operations, parked first"), ("--once", "one screen, for a script")),
    "survey": (
        ("--os-cloud admin", "what differs between Nova and Cinder"),
        ("--os-cloud admin -f json", "the same with the commands that repair it, for a script"),
        (
            "--os-cloud admin --hosts hv1.json hv2.json --html survey.html",
            "also compare two hosts, and write a page",
        ),
        ("--os-cloud admin --ssh", "also ask all of Nova's hosts"),
    ),
    "history volume": (
        ("63383fde", "all that happened to a volume"),
        ("63383fde --at 2026-11-17T14:02", "only what happened until then"),
    ),
    "attachment list": (
        ("--server db-1", "the attachments of a server"),
        ("--host hv1 --at 2026-11-17T14:02", "what was on a host at a past moment"),
    ),
    "volume list": (("--host hv1", "the volumes that a host holds, and for which servers"),),
    "server add volume": (("db-1 63383fde-248a-4caa-bcc5-35766d9c8d28 --wait", "attach"),),
    "server remove volume": (("db-1 63383fde --wait", "detach"),),
    "server migrate": (("db-1 --live-migration --host hv2 --wait", "while the guest runs"),),
    "server evacuate": (("db-1 --wait", "after its host was fenced"),),
    "drift list": (("--severity critical", "only critical findings"),),
    "history server": (("db-1", "all that was done to a server"),),
    "history attachment": (("7c1e --at 2026-11-17T14:02", "one attachment, until then"),),
    "history host": (("hv1 --limit 20", "the last 20 events of a host"),),
    "history sql": (("", "what to run in the database of a Nova cell"),),
    "history import": (("past.jsonl", "what that has printed"),),
    "history operation": (("44e1 --long", "an operation, with its bookkeeping"),),
    "attachment show": (("7c1e --at 2026-11-17T14:02", "one attachment as it was then"),),
    "attachment swap": (
        (
            "db-1 63383fde 0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9 --wait",
            "move to another volume, while the guest runs",
        ),
    ),
    "attachment refresh": (("--host hv1 --wait", "after the portals of its storage have changed"),),
    "attachment convert": (("db-1 --wait", "convert the attachments of a server"),),
    "operation wait": (
        ("44e1 --timeout 3600", "wait until it has ended or is parked; the exit code says which"),
    ),
    "remnant list": (("--host hv1", "what was left on a host"),),
    "request show": (
        (
            "req-b18f3e17-d785-4363-8e7f-460d0f9b6fbd",
            "what a request led to, or why it was refused",
        ),
    ),
    "drift show": (("9f2c", "what each party says, and which commands to type"),),
    "drift looks": (("--state under_way", "the looks in progress"),),
    "drift look": (("c0de", "what it found, suppressed, and could not read"),),
    "drift classes": (("-f json", "all classes, with their meaning"),),
    "server list": (("--host hv1", "the servers of a host"),),
    "server show": (("db-1", "its state, and its operation in progress"),),
    "server create": (
        (
            "db-2 --volume 63383fde-248a-4caa-bcc5-35766d9c8d28 --memory 2048",
            "boot from a volume",
        ),
    ),
    "server delete": (("db-2 --wait", "wait until its volumes are free"),),
    "server forget": (
        ('db-1 --reason "lost with its host"', "show what it would release"),
        ('db-1 --reason "lost with its host" --apply --wait', "do it"),
    ),
    "server start": (("db-1 --wait", "start it"),),
    "server stop": (("db-1 --wait", "shut it down"),),
    "server pause": (("db-1", "pause it; it stays in memory"),),
    "server unpause": (("db-1", "continue it"),),
    "server reboot": (
        ("db-1 --hard --wait", "power it off and on; its volumes are connected again"),
    ),
    "server rebuild": (
        ("db-1 --wait", "define its guest again, with its volumes"),
        (
            "db-1 --image 1bea47ed-f6a9-463b-b423-14b9cca9ad27 --wait",
            "write an image to its root volume",
        ),
    ),
    "server resize": (("db-1 --flavor c2.m4096 --wait", "2 vCPUs and 4096 MiB"),),
    "server resize confirm": (("db-1 --wait", "keep the new host and size"),),
    "server resize revert": (("db-1 --wait", "move it back"),),
    "server shelve": (("db-1 --wait", "remove it from its host; its volumes stay reserved"),),
    "server unshelve": (("db-1 --host hv2 --wait", "start it on this host"),),
    "server lock": (('db-1 --reason "is being restored"', "refuse its users' requests"),),
    "server unlock": (("db-1", "accept its users' requests again"),),
    "server reset-state": (("db-1 --state active", "show it as active again"),),
    "server migration list": (("--server db-1", "its migrations"),),
    "server migration show": (("db-1 3", "its progress"),),
    "server migration abort": (("db-1 3 --wait", "abort it, if the guest has not moved yet"),),
    "server event list": (("db-1", "the requests for it, as in Nova"),),
    "server event show": (
        ("db-1 req-b18f3e17-d785-4363-8e7f-460d0f9b6fbd", "the result of one request"),
    ),
    "host list": (("", "which hosts are up, fenced, or suspect"),),
    "host show": (("hv1", "what it holds, and its pending commands"),),
    "host disable": (('hv1 --reason "kernel update"', "place no new servers on it"),),
    "host enable": (("hv1", "allow new servers again"),),
    "flow list": (("", "all flows"),),
    "flow verify": (("", "check that this version reads your log"),),
    "flow show": (
        ("attach", "its steps, and what undoes each"),
        ("live_migrate --diagram", "its sequence diagram"),
    ),
    "event list": (
        ("--after 1200 --limit 50", "a part of the log"),
        ("--topic Host.Fenced", "which hosts were fenced, when and by whom"),
    ),
    "event tail": (("-f json", "new events as JSON"),),
    "event checkpoint": (("> checkpoint.json", "store it outside the database"),),
    "event sign": (("--key log.pem --to /checkpoints", "sign the present end of the log"),),
    "event prove": (
        ("1200 --from /checkpoints > event.tlog-proof", "prove one event, without showing others"),
        ("--since old.checkpoint --from /checkpoints", "prove that the log has only grown since"),
    ),
    "event verify": (
        ("--checkpoint checkpoint.json", "prove also that the log matches a checkpoint"),
    ),
    "event archive": (
        (
            "--before 2026-01 --to /archive --detach",
            "archive closed months, and delete what only describes the past",
        ),
    ),
    "event erase-person": (
        ("3f2a... --dry-run", "show what is stored about a user"),
        ('3f2a... --reason "has left, asked for it"', "erase it"),
    ),
    "event restore": (("--from /archive", "load all detached months"),),
    "forward": (
        (
            "siem --to https://siem.example.org/ledger --format ocsf --token-file /run/token",
            "send events to a SIEM",
        ),
        (
            "audit --to file:///var/log/ledger.cadf --format cadf",
            "write events to a file that is rotated",
        ),
    ),
    "projection list": (("", "how far each is behind, and why"),),
    "projection rebuild": (("operations", "rebuild one; queries read the old rows"),),
    "db status": (("--config ledger.toml", "the migrations of the schema"),),
    "db check": (("--config ledger.toml", "what to run, if anything"),),
    "db preflight": (
        ("--config ledger.toml -f json", "check that nothing is in progress, for a script"),
    ),
    "db upgrade": (("--config ledger.toml", "migrate the database"),),
    "db restored": (
        ("--dry-run", "show what it would do"),
        ('--reason "disk of db1 lost"', "mark it"),
    ),
    "db federate": (("cells.conf --dry-run", "print the SQL that creates the views"),),
    "db grant": (("auditor alice", "grant a role an auditor's rights"),),
    "config show": (("--config ledger.toml", "the settings with defaults, without secrets"),),
    "complete": (("--shell zsh", "the completion script, for the start-up file of zsh"),),
    "demo": (("--once -f json", "run once, and print a summary as JSON"),),
    "sim cinder": (("--port 8776 --faults faults.json", "a Cinder with planned faults"),),
    "sim fault list": (("--cinder http://127.0.0.1:8776", "its fault rules"),),
    "sim fault set": (("faults.json --cinder http://127.0.0.1:8776", "replace its fault rules"),),
    "serve": (
        ("--config ledger.toml", "run on the database of the settings"),
        ("--trial", "run on a temporary database"),
    ),
}


def lines(command: str, called: str) -> Iterator[str]:
    """What can be typed, each below what for; `called`: the command, as it is typed there."""
    for typed, what in EXAMPLES.get(command, ()):
        yield f"# {what}"
        yield f"{called} {typed}".rstrip()
