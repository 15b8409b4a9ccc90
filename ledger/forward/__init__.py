"""The events of the log, told to others in the forms that they read (decision 0115)."""
