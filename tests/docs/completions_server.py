"""A server with the part of vLLM's API that docs/examples/prompt_embeds.py calls: GET /v1/models, POST /v1/completions.

What continues a prompt is a function of the test: the body of a request → the text.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Completes = Callable[[dict[str, Any]], str]


@contextmanager
def serving(complete: Completes, model: str = "stand-in") -> Iterator[str]:
    """Serve completions on loopback; give the address. ValueError of `complete` is answered with 400."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self._answer(200 if found else 404, {"object": "list", "data": [{"id": model}]} if found else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/v1/completions" or body["model"] != model:
                return self._answer(404, {"error": {"message": f"no {self.path} of {body['model']}"}})
            try:
                text = complete(body)
            except ValueError as error:
                return self._answer(400, {"error": {"message": str(error)}})
            return self._answer(200, {"object": "text_completion", "choices": [{"index": 0, "text": text}]})

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing to standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
