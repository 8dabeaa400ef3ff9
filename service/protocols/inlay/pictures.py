"""Reads pictures in JSON: a file's bytes as a data URL or as bare base64, or the address of one."""

import pybase64

from service.embedding.requests import Picture
from service.errors import BadInput, FieldPath
from service.http.validation_errors import quoted


def decode_picture(text: str, path: FieldPath) -> Picture:
    """Return the picture in a data URL, in bare base64 or at an address; raise BadInput for any other text."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            allowed = "a data URL is data:image/png;base64, and base64 after it"
            raise BadInput(f"is {quoted(head)}", field=path, allowed=allowed)
    elif text[:8].lower().startswith(("http://", "https://")):
        return Picture(b"", text, path)
    elif "://" in text[:64]:
        remedy = "send the file itself, as a data URL"
        raise BadInput(f"is {quoted(text)}", field=path, allowed="addresses are not fetched", remedy=remedy)
    try:
        return Picture(pybase64.b64decode("".join(text.split()), validate=True))
    except ValueError:
        remedy = "send a data URL or bare base64 of a JPEG, PNG or WebP file"
        raise BadInput("is not base64", field=path, remedy=remedy) from None
