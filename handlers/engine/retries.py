"""How often a step is tried again, and when: by its verb (`VerbSpec.retry`).

A FINAL error is not tried again.  RETRYABLE and UNKNOWN ones are, by the verb's
policy: every step is an *ensure*, so trying again after an unknown outcome is
right.  When the attempts are used up the step has failed.

DISK_COPY, DISK_MERGE and GUEST_MIGRATE are tried once more at most: they took long, and
whoever asked shall hear of it.

No step waits for longer than the longest delay.  One that seems to was put off when the clock
was ahead, and it has been set back since: it is due.
"""

from __future__ import annotations

from handlers.engine.verbs import VERBS
from host_agent.shared.contract.backoff import wait_s

#: Twice the longest delay: clocks need not agree to the second.
PUT_OFF_MAX_S = 2 * max(spec.retry.max_s for spec in VERBS.values())


def is_due(at: float, now: float) -> bool:
    """Whether a step that was put off until `at` is to be tried again."""
    return not now < at <= now + PUT_OFF_MAX_S


def retry_delay_s(verb: str, attempts: int, patient: bool = False) -> float | None:
    """Seconds to wait after `attempts` attempts, or None if they are used up.

    For a `patient` plan they never are: release work goes on until all is released.
    """
    policy = VERBS[verb].retry
    if attempts >= policy.attempts and not patient:
        return None
    return wait_s(attempts, policy.first_s, policy.max_s)
