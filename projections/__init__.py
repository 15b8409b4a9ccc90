"""What people ask and the machine acts on: tables that are folded from the log.

`base` says what a projection is, `projector` advances them exactly once, `runner` keeps a
process's database current, `queries` reads.  Each table can be made anew from the log.
"""
