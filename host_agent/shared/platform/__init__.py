"""The platform of both programs: settings, logs, TLS, HTTP connections; nothing of the domain."""
