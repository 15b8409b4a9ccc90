"""Tables folded from the log: what people read, and what the service acts on.

`base` says what a projection is, `projector` advances them exactly once, `runner` keeps a
process's database current, `queries` reads.  Each table can be made anew from the log.
"""
