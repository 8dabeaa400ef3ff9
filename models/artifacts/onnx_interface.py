"""Reads the inputs and outputs of an adopted graph: what Inlay feeds it, and what it is served for."""

from models.artifacts.adopted_pooling import POOLED
from models.artifacts.card import Graph
from models.artifacts.comparison import Session
from models.errors import BadCheckpoint

FILE = "model.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
HIDDEN = ("last_hidden_state", "token_embeddings")  # the second: what optimum's sentence-transformers exports call it
TYPES = ("tensor(float)", "tensor(float16)")  # of outputs; vectors are answered in float32


def graph_of(session: Session) -> Graph:
    """Return the card's entry for a graph; BadCheckpoint if Inlay does not know its inputs and outputs."""
    for name, value in session.inputs.items():
        if name not in INPUTS:
            raise BadCheckpoint(f"{session.path} wants the input {name!r}; Inlay feeds {', '.join(INPUTS)}")
        if value.type != "tensor(int64)":
            raise BadCheckpoint(
                f"{session.path} takes {name} as {value.type}; Inlay feeds int64: export it with int64 inputs"
            )
        if len(value.shape) != 2 or any(isinstance(size, int) for size in value.shape):
            raise BadCheckpoint(
                f"{session.path} takes {name} of shape {value.shape}; batch and length must both be free: "
                "export it with dynamic axes"
            )
    if "input_ids" not in session.inputs or "attention_mask" not in session.inputs:
        raise BadCheckpoint(
            f"{session.path} takes {', '.join(session.inputs)}; it must take input_ids and attention_mask"
        )
    hidden = next((name for name in HIDDEN if name in session.outputs), None)
    outputs = [*(["last_hidden_state"] if hidden else []), *([POOLED] if POOLED in session.outputs else [])]
    if not outputs:
        known = ", ".join((*HIDDEN, POOLED))
        raise BadCheckpoint(f"{session.path} gives {', '.join(session.outputs)}; one of {known} is needed")
    for name in ([hidden] if hidden else []) + ([POOLED] if POOLED in outputs else []):
        if (kind := session.outputs[name].type) not in TYPES:
            raise BadCheckpoint(f"{session.path} gives {name} as {kind}; {' or '.join(TYPES)} is served")
    rename = {"last_hidden_state": hidden} if hidden not in (None, "last_hidden_state") else {}
    inputs = tuple(name for name in INPUTS if name in session.inputs)
    return Graph(FILE, inputs, tuple(outputs), "padded", rename)
