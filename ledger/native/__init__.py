"""/v1: what Nova has no form for.  Operations, history, drift, hosts for operators."""
