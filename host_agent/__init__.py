"""The process on a hypervisor: it takes its host's commands and does them step by step.

`line` talks to the ledger, `executor` runs commands under `locks`, `verbs` are the steps,
`storage` and `libvirt` are the host, `simulated` stands in for both.  `leftovers` clears
what a fenced host holds and must release.  Others may import `shared`, and nothing else.
"""
