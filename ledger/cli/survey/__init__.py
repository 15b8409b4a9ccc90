"""`survey`: what differs beside a Nova that runs, without a ledger."""
