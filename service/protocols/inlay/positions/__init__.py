"""Positional encodings over HTTP: any parameters under /positions, a model's own under /models/{name}."""
