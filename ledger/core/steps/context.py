"""What the ledger's own steps act on; a leaf, so that the steps and their table both import it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aggregates.base import Aggregate, Event
from aggregates.operation import Operation
from handlers.results.meaning import Book
from host_agent.shared.contract.ports import Cinder
from ledger.log.unit import AggregateStore, Unit, own_context, run_optimistically

A = TypeVar("A", bound=Aggregate)


@dataclass(frozen=True, kw_only=True)
class EffectContext:
    """What effects act on; `wait` blocks for so many seconds."""

    cinder: Cinder
    book: Book
    wait: Callable[[float], None]
    first: bool = False  # nobody has begun this step before (plan.is_first)
    uncertain: bool = False  # an earlier attempt to do this step may still have an effect
    operation: Operation | None = None  # whose step it is
    run: int = 0  # number of the run in it


def given_up(
    kind: type[A],
    id_: str,
    by: type[Event],
    context: EffectContext,
    store: AggregateStore,
    **of: Any,
) -> A:
    """What a step made although another process had done the step.  If the log does not know it,
    the log gives it up.

    Another process may just have found the same object, and be about to adopt it.  One of the two
    saves is refused: either it is used, and stays, or nobody adopts it any more.
    """
    operation = context.operation
    assert operation is not None, "it is a step of one"

    def change(unit: Unit) -> A:
        made = unit.get(kind, id_)
        if made.version == 0:
            made.record(by, **of, why="created for a step that another process had done")
            unit.save(own_context(operation))
        return made

    return run_optimistically(store, change)
