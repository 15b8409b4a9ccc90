"""The console under /ui/: pages made from the API's answers, under the same policy."""
