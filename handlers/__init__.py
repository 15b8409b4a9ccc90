"""What may happen, and in what order; as pure as the aggregates.

How a request becomes events, and what a crash leaves at each point:

* `requests` (`accept`: one volume, `actions`: a whole server, `build`: a new one) checks the
  `guards`, takes the claims and starts the operation with its plan, all in one transaction.
  After a crash before it, nothing has happened; after it, the operation is due.
* `engine.decide(plan, history)` returns what is next; `Execution.advance` takes each decision
  without an outside effect in the transaction that made it possible.
* The intent of a run is stored before its effect.  A crash then leaves an intent without a
  result, and the next process does the step again: every step checks the state before it acts.
* The result is stored after the effect, with the domain events that it means (`results.meaning`).
* A failure up to the pivot undoes what may have happened, in reverse.  After the pivot, or while
  undoing, the operation parks; `requests.operator` has the acts of operators.

`flows` has the flows as tables.
"""
