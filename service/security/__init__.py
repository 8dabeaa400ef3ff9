"""API keys and TLS."""
