"""The HTTP server: one pipeline for every route."""
