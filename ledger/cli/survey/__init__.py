"""`survey`: the differences in a running Nova cloud, without a ledger."""
