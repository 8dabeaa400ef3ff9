"""Inlay's own protocol: /embed, /models, /positions and inlay.v1."""
