"""The routes of images in the OpenAPI document, from the models that validate them. Serves nothing."""

from typing import Any

from service.http.formats import JSON, SAFETENSORS
from service.http.multipart import MULTIPART
from service.protocols.inlay import images, similarity
from service.protocols.inlay.positions import described

MODELS = (images.ImagesBody, similarity.ASKED)
NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "of a model"}
FILE = {"schema": {"type": "string", "format": "binary"}}
EXAMPLES = {
    "data_url": {"value": {"inputs": [{"image": "data:image/png;base64,iVBORw0KGgo..."}]}},
    "tensor": {"value": {"inputs": {"pixel_values": {"dtype": "float32", "shape": [3, 224, 224], "data": "AAAA..."}}}},
}
FORM = {
    "type": "object",
    "properties": {
        "image": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "outputs": {"type": "string", "description": "names with commas between"},
        "dtype": {"enum": ["float32", "float16", "bfloat16"]},
        "encoding_format": {"enum": ["float", "base64"]},
    },
}


def paths(embed: dict[str, Any], refusal: dict[str, Any]) -> dict[str, Any]:
    """Both routes.

    embed    the operation of /embed, whose answers those of images are
    refusal  describes a problem
    """
    body: dict[str, Any] = {
        JSON: {"schema": {"$ref": f"#/components/schemas/{images.ImagesBody.__name__}"}, "examples": EXAMPLES},
        MULTIPART: {"schema": FORM},
    }
    operation = embed | {
        "summary": "Embed images or pixel tensors",
        "description": "Images as data URLs, base64, files of a form or one file; never fetched from an address.",
        "operationId": "images",
        "parameters": [NAME],
        "requestBody": {"required": True, "content": body | dict.fromkeys((SAFETENSORS, *images.PICTURES), FILE)},
    }
    alike = described.post(similarity.ASKED, described.OF_A_MODEL, "Compare texts with images", "similarity", refusal)
    return {images.PATH: {"post": operation}, similarity.PATH: {"post": alike | {"tags": ["embed"]}}}
