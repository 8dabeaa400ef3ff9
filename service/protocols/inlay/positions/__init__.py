"""Positional encodings over HTTP: of any parameters under /positions, of a model under /models/{name}."""
