"""Commands about operations: their progress, and what an operator may do."""
