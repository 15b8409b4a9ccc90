"""How often a step is tried again, and when, as data.

A FINAL error is not tried again.  RETRYABLE and UNKNOWN ones are, by the verb's
policy: every step is an *ensure*, so trying again after an unknown outcome is
right.  When the attempts are used up the step has failed.

DISK_COPY, DISK_MERGE and GUEST_MIGRATE are tried once more at most: they took long, and
whoever asked shall hear of it.

No step waits for longer than the longest delay.  One that seems to was put off when the clock
was ahead, and it has been set back since: it is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from handlers.verbs import LedgerVerb
from host_agent.shared.backoff import wait_s
from host_agent.shared.contract import Verb


@dataclass(frozen=True)
class Policy:
    """`attempts` in all; waits double from `first_s` up to `max_s`."""

    attempts: int = 6
    first_s: float = 1.0
    max_s: float = 60.0


DEFAULT = Policy()

#: The adapters behind these verbs already try many times and for long themselves.
BY_VERB: dict[str, Policy] = {
    Verb.DISK_UNPLUG: Policy(attempts=2),
    Verb.DISK_COPY: Policy(attempts=2),
    Verb.GUEST_MIGRATE: Policy(attempts=2),
    Verb.VOLUME_WAIT_READY: Policy(attempts=3),
    #: A volume made from an image takes minutes until it can be reserved (nova: 180 s).
    LedgerVerb.VOLUME_AWAIT: Policy(attempts=100, max_s=5.0),
    #: Nor can it be deleted before.
    LedgerVerb.VOLUME_UNMAKE: Policy(attempts=100, max_s=5.0),
    #: Cinder looks every ten seconds, and then has its own work to do.
    LedgerVerb.SNAPSHOT_AWAIT: Policy(attempts=100, max_s=5.0),
    #: As long as Cinder takes to write an image: an hour and a half.  It tells when it has.
    LedgerVerb.VOLUME_REIMAGE: Policy(attempts=100),
    Verb.DISK_MERGE: Policy(attempts=2),
}


#: Twice the longest delay: clocks need not agree to the second.
PUT_OFF_MAX_S = 2 * max(policy.max_s for policy in (DEFAULT, *BY_VERB.values()))


def is_due(at: float, now: float) -> bool:
    """Whether a step that was put off until `at` is to be tried again."""
    return not now < at <= now + PUT_OFF_MAX_S


def retry_delay_s(verb: str, attempts: int, patient: bool = False) -> float | None:
    """Seconds to wait after `attempts` attempts, or None if they are used up.

    For a `patient` plan they never are: release work goes on until all is released.
    """
    policy = BY_VERB.get(verb, DEFAULT)
    if attempts >= policy.attempts and not patient:
        return None
    return wait_s(attempts, policy.first_s, policy.max_s)
