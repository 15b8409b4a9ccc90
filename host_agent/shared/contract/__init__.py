"""What ledger and agents say to each other, and what a verb needs of the world."""
