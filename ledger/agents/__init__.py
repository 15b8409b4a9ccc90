"""What host agents call: register, take commands, report.  What they say is checked here."""
