"""How often a step is tried again, and when, as data.

A FINAL error is not tried again.  RETRYABLE and UNKNOWN ones are, by the verb's
policy: every step is an *ensure*, so trying again after an unknown outcome is
right.  When the attempts are used up the step has failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from host_agent.contract import Verb


@dataclass(frozen=True)
class Policy:
    """`attempts` in all; waits grow by `factor` from `first_s` up to `max_s`."""

    attempts: int = 6
    first_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0


DEFAULT = Policy()

#: The adapters behind these verbs already try many times and for long themselves.
BY_VERB: dict[str, Policy] = {
    Verb.DISK_UNPLUG: Policy(attempts=2),
    Verb.VOLUME_WAIT_READY: Policy(attempts=3),
}


def retry_delay_s(verb: str, attempts: int) -> float | None:
    """Seconds to wait after `attempts` attempts, or None if they are used up."""
    policy = BY_VERB.get(verb, DEFAULT)
    if attempts >= policy.attempts:
        return None
    return min(policy.first_s * policy.factor ** (attempts - 1), policy.max_s)
