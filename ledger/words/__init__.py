"""What happened, and what acts would do, in words: for the command line and the console.  Pure."""
