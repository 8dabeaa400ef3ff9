"""Inlay's own protocol: /embed, /models, /positions and inlay.v1."""

from service.http import openapi_data

DATA = openapi_data.read(__package__)
"""What openapi.json says: operations, schemas, tags; `parts` stand in the documents of other protocols too."""
