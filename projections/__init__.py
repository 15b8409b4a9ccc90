"""Tables folded from the log: what queries read, and what the service acts on.

`base` defines a projection.  `running.projector` applies each event to them exactly once,
`running.runner` keeps the database current, `reads` queries it.  Each table can be rebuilt from
the log.
"""
