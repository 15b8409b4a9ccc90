"""Commands for the service's own machine: the service, its database, the trial."""
