"""An extension of griffe, which reads the Python sources for mkdocstrings."""

from typing import Any

import griffe


class NamedTuples(griffe.Extension):  # type: ignore[misc]
    """Gives the classes of typing.NamedTuple the signature of their fields, as griffe does for dataclasses."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add `__init__` to a class that derives from NamedTuple."""
        if "__init__" in cls.members or "NamedTuple" not in map(str, cls.bases):
            return
        fields = [each for each in cls.members.values() if isinstance(each, griffe.Attribute) and each.annotation]
        parameters = [
            griffe.Parameter(
                each.name,
                annotation=each.annotation,
                kind=griffe.ParameterKind.positional_or_keyword,
                default=each.value,
            )
            for each in fields
        ]
        function = griffe.Function(
            "__init__", lineno=0, endlineno=0, parent=cls, parameters=griffe.Parameters(*parameters)
        )
        cls.set_member("__init__", function)
