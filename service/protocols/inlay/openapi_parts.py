"""What openapi.json says of Inlay's own protocol, and the tags of every protocol's operations."""

from service.http import openapi_data

DATA = openapi_data.read(__package__)
"""Its operations, schemas and tags; `parts` stand in the documents of other protocols too."""
