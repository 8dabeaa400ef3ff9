"""What openapi.json says of Inlay's own protocol, and the tags of every protocol's operations."""

from service.http import openapi_data

EMBED = "embed"
RERANK = "rerank and classify"
POSITIONS = "positions"
MODELS = "models"
TEI = "text-embeddings-inference"
OIP = "Open Inference Protocol"
OIP_REPOSITORY = "Open Inference Protocol: model repository"
OPERATION = "operation"

DATA = openapi_data.read(__package__)
"""Its schemas, examples, descriptions and tags; `parts` are schemas that stand in others."""
