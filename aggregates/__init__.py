"""What is true: pure state machines and invariants over explicit events.

`Attachment` is Cinder's row with our proof: never deleted while a host may hold it.
`BlockDeviceMapping` is a volume as a device of a server, and exists only complete.
`Instance` gives device names away once, a (server, volume) pair to one mapping, and is where
the flows have put it.
`Volume` has one operation at a time, and one server unless it is multi-attach.
`Host` has an epoch; what belongs to an older one is refused.
`Operation` is a flow under way: intent before effect, result after, first error kept.

Nothing in here reads a clock, rolls a die, or talks to anybody.
"""
