"""Reads the inputs and outputs of an adopted graph, and what they are served as."""

from models.artifacts.card import CLASS_LOGITS, Graph
from models.artifacts.comparison import Session
from models.errors import BadCheckpoint
from models.recipes.graph_names import POOLED

FILE = "model.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
LOGITS = "logits"  # of labels, as optimum exports classifiers
HIDDEN = ("last_hidden_state", "token_embeddings")  # the second: what optimum's sentence-transformers exports call it
TYPES = ("tensor(float)", "tensor(float16)")  # of outputs; vectors are answered in float32


def graph_of(session: Session, logits: str | None = None) -> Graph:
    """Return the card's entry for a graph.

    Args:
        session: session of the graph.
        logits: output that serves the logits of a graph without hidden states; None: they are not served.

    Raises:
        BadCheckpoint: Inlay does not know its inputs and outputs.
    """
    _check_inputs(session)
    names = _outputs(session, logits)
    for name in names.values():
        if (kind := session.outputs[name].type) not in TYPES:
            raise BadCheckpoint(f"{session.path} gives {name} as {kind}; {' or '.join(TYPES)} is served")
    rename = {output: name for output, name in names.items() if name != output}
    inputs = tuple(name for name in INPUTS if name in session.inputs)
    return Graph(FILE, inputs, tuple(names), "padded", rename)


def _check_inputs(session: Session) -> None:
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


def _outputs(session: Session, logits: str | None) -> dict[str, str]:
    """Return the graph's name of each output that is served, by ours."""
    hidden = next((name for name in HIDDEN if name in session.outputs), None)
    names = {"last_hidden_state": hidden} if hidden else {}
    names |= {POOLED: POOLED} if POOLED in session.outputs else {}
    if not names and logits and LOGITS in session.outputs:
        names = {logits: LOGITS}
        rank = 2 if logits == CLASS_LOGITS else 3
        if len(shape := session.outputs[LOGITS].shape) != rank:
            raise BadCheckpoint(
                f"{session.path} gives {LOGITS} of shape {shape}; config.json makes them of {rank} axes"
            )
    if not names:
        known = ", ".join((*HIDDEN, POOLED, *([LOGITS] if logits else [])))
        raise BadCheckpoint(f"{session.path} gives {', '.join(session.outputs)}; one of {known} is needed")
    return names
