"""The console under /ui/: pages for people, made of what the API answers, by the same policy."""
