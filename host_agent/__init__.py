"""The agent on a hypervisor host: it fetches the host's commands and does them step by step.

`line` is the connection to the ledger, `executor` runs commands under `locks`, `verbs` are the
steps, `storage` and `libvirt` are the host; `simulated` replaces both.  `leftovers` clears what a
fenced host must release.  Other packages may import only `shared`.
"""
