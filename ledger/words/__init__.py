"""Sentences for events and acts, for the command line and the console.  Pure."""
