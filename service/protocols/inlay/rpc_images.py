"""The method Images of inlay.v1.Embedder, which is POST /models/{name}/images over gRPC."""

from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding.images import ImagesRequest, Picture
from service.embedding.requests import EmbedOptions, EmbedResult
from service.errors import FieldPath, MissingField
from service.http.validation_errors import validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay.images import ImageInputs, ImagesBody, read_grid, split_stack
from service.protocols.inlay.rpc_fields import array_of, fields_of
from service.request_context import RequestContext


class Images:
    """Embeds images."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def __call__(self, message: pb.ImagesRequest, call: RequestContext) -> EmbedResult:
        """Return the outputs; raise InlayError if an image or an option cannot be served."""
        name = self._context.registry.get(message.model or None).card.name
        inputs = await inline_or_in_thread(message.ByteSize(), _inputs, message)
        message.ClearField("inputs")
        body = validated(ImagesBody, {"inputs": None} | fields_of(message), strict=True)
        options = EmbedOptions(
            tuple(body.outputs or ()), dtype=body.dtype, normalize=body.normalize, dimensions=body.dimensions
        )
        return await self._context.images.embed(ImagesRequest(inputs, name, options), call)


def _inputs(message: pb.ImagesRequest) -> ImageInputs:
    return [image for index, sent in enumerate(message.inputs) for image in _input(sent, index)]


def _input(message: pb.Image, index: int) -> ImageInputs:
    """Return the image of one entry; several images for a tensor that holds a stack of one size."""
    path: FieldPath = ("inputs", index)
    name = message.WhichOneof("kind")
    if name is None:
        raise MissingField("has no image", field=path, remedy="set picture, pixel_values or input_features")
    if name == "picture":
        return [Picture(message.picture)]
    grid = read_grid(list(message.grid) or None, (*path, "grid"))
    return [*split_stack(name, array_of(getattr(message, name), (*path, name)), grid)]
