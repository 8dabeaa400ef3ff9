"""What can go wrong with a model on disk.

ModelError                 a message of one line: what came, what is allowed, what to do
├── BadCheckpoint          a checkpoint that cannot be read: missing, truncated, hostile, of a wrong shape
├── UnknownFamily          a model_type no row of FAMILIES knows
├── BadEncoding            a positional encoding with a missing, unknown or impossible parameter
│   └── BadScaling         a RoPE scaling with one
├── BadQuestion            a question to a model's tables that has no answer: an id or a width they do not have
├── BadCard                an exported folder whose card or files do not hold together
└── NotFaithful            an export that differs from its reference by more than the tolerance
"""


class ModelError(Exception):
    """Something about a model on disk; the message is one line for the person who named the folder."""


class BadCheckpoint(ModelError):
    """A checkpoint that cannot be read."""


class UnknownFamily(ModelError):
    """A model_type that no row of FAMILIES knows."""


class BadEncoding(ModelError):
    """A positional encoding with a missing, unknown or impossible parameter."""


class BadScaling(BadEncoding):
    """A RoPE scaling with a missing, unknown or impossible parameter."""


class BadQuestion(ModelError):
    """A question to a model's tables that has no answer."""


class BadCard(ModelError):
    """An exported folder whose card or files do not hold together."""


class NotFaithful(ModelError):
    """An export that differs from its reference by more than the tolerance."""
