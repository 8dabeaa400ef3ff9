"""The page of the settings, made from `service.settings.Settings`."""

from typing import Any

from reference_pages.markdown import code, described, heading, page, table
from service.cli.options import flag, shown, variable
from service.settings import SECTIONS, Settings

INTRODUCTION = """\
Each setting is a variable (`INLAY_MAX_INPUTS=64`) and an option of `inlay serve` (`--max-inputs 64`); options win.
`inlay settings` lists them, `inlay check` tries them by loading models, keys, certificates and tracing once. A
variable `INLAY_...` that is not a setting is an error that names the nearest one.

"The memory" is what the container (its cgroup) or the machine allows one worker, less the 192 MiB that a worker
takes by itself."""
TYPES = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text", "array": "list"}
BOUNDS = (("minimum", "from {}"), ("exclusiveMinimum", "above {}"), ("maximum", "to {}"))


def settings_page() -> str:
    """Return the page: one table for each section, one row for each setting."""
    schema = Settings.model_json_schema(by_alias=False)["properties"]
    sections: dict[str, list[list[str]]] = {}
    title = ""
    for name, entry in schema.items():
        title = SECTIONS.get(name, title)
        sections.setdefault(title, []).append(_row(name, entry))
    parts = [
        f"{heading(2, title)}\n\n{table(['variable and option', 'values', 'default', 'meaning'], rows)}"
        for title, rows in sections.items()
    ]
    return page("Settings", INTRODUCTION, *parts, wide=True)


def _row(name: str, entry: dict[str, Any]) -> list[str]:
    default = f"`{shown(entry['default'])}`" if "default" in entry else "by memory"
    if entry.get("default", "") in (None, [], ()):
        default = shown(entry["default"])
    anchor = f'<span id="{variable(name)}"></span>'
    return [f"{anchor}`{variable(name)}`<br>`{flag(name)}`", _values(entry), default, described(entry["description"])]


def _values(entry: dict[str, Any]) -> str:
    first = entry.get("anyOf", [entry])[0]
    if words := first.get("enum"):
        return ", ".join(code(str(word)) for word in words)
    kind = "path" if first.get("format") == "path" else TYPES[first["type"]]
    bounds = [text.format(first[key]) for key, text in BOUNDS if key in first]
    return " ".join([kind, *bounds])
