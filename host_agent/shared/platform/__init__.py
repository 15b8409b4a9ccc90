"""What both programs run on: settings, logs, TLS, lines; nothing of the domain."""
