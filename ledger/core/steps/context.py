"""What the ledger's own steps act on; a leaf, so that the steps and their table both import it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aggregates.operation import Operation
from handlers.results.meaning import Book
from host_agent.shared.contract.ports import Cinder, OldCinder


@dataclass(frozen=True, kw_only=True)
class EffectContext:
    """What effects act on; `wait` blocks for so many seconds."""

    cinder: Cinder
    old_cinder: OldCinder
    book: Book
    wait: Callable[[float], None]
    first: bool = False  # nobody has begun this step before (progress.is_first)
    uncertain: bool = False  # an earlier attempt to do this step may still have an effect
    operation: Operation | None = None  # whose step it is
    run: int = 0  # number of the run in it
