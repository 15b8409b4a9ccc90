"""The process on a hypervisor: takes its host's commands, and does them step by step.

`link` talks to the ledger, `executor` runs commands under `locks`, `verbs` are the steps,
`brick` and `guests` (over `libvirt_driver`) are the host, `simulated` stands in for it;
`records` keep what it has connected, `leftovers` clears what is not its any more.
Others may see `contract`, `ports`, `cinder`, `cinder_old` and `faults`, and nothing else.
"""
