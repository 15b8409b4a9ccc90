"""What is true: pure state machines and their invariants, made of events.

`Attachment`: an attachment in Cinder with the ledger's evidence.  Never deleted while a host may
still hold the volume.
`BlockDeviceMapping`: a volume as a device of a server.  It exists only complete.
`Instance`: a server.  It assigns each device name once, and one mapping to each (server, volume)
pair.  Its host is the one where the flows have put it.
`Volume`: has one operation at a time for each server, and one server unless it is multi-attach.
`Host`: has an epoch; commands and reports of an older epoch are refused.
`Operation`: a flow in progress.  The intent is stored before an effect, the result after it; the
first error is kept.

Nothing here reads a clock, uses randomness or does I/O.
"""
