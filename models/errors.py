"""The errors of `models`, one tree.

ModelError                 the message is one line: what came, what is allowed, what to do
├── BadCheckpoint          a checkpoint that cannot be read: missing, truncated, hostile, or of a wrong shape
├── UnknownFamily          a model_type that FAMILIES does not list
├── BadEncoding            a positional encoding with a missing, unknown or impossible parameter
│   └── BadScaling         a RoPE scaling with such a parameter
├── BadQuery               a query of a model's tables with an id or a width that they do not have
├── BadCard                an exported folder whose card and files do not match
├── NoWritableFolder       a library needs a folder to write to, and this machine has none
└── ReferenceMismatch      an export that differs from the float64 reference by more than the tolerance
"""


class ModelError(Exception):
    """A problem with a model on disk; the message is one line for the person who named the folder."""


class BadCheckpoint(ModelError):
    """A checkpoint that cannot be read."""


class UnknownFamily(ModelError):
    """A model_type that FAMILIES does not list."""


class BadEncoding(ModelError):
    """A positional encoding with a missing, unknown or impossible parameter."""


class BadScaling(BadEncoding):
    """A RoPE scaling with a missing, unknown or impossible parameter."""


class BadQuery(ModelError):
    """A query of a model's tables that has no answer."""


class BadCard(ModelError):
    """An exported folder whose card and files do not match."""


class NoWritableFolder(ModelError):
    """A library needs a folder that it can write to, and this machine has none."""


class ReferenceMismatch(ModelError):
    """An export that differs from the float64 reference by more than the tolerance."""
