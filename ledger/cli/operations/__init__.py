"""Commands about operations: what is under way, how it goes, what a person may do."""
