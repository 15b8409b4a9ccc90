"""What may happen, and in what order; as pure as the aggregates.

How a request becomes events, and what a crash leaves at each point:

* `accept` (one volume), `actions` (a whole server) and `build` (a new one) check the
  `guards`, take the claims and start the operation with its plan, all in one transaction.
  A crash before: nothing happened.  After: the operation is due.
* `engine.decide(plan, history)` says what is next; `Execution.advance` takes each decision
  that has no effect outside, in the transaction that made it possible.
* Before an effect its run is recorded.  A crash then leaves an intent without a result,
  and whoever takes the operation up does the step again: it looks before it acts.
* After an effect its result is recorded, with the domain events it means (`meaning`).
* A failure up to the pivot undoes what may have happened, in reverse; after it, or while
  undoing, the operation parks, and `operator` has what a person may do about it.

`flows` is the table of contents of the product.
"""
