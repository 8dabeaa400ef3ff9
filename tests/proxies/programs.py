"""nginx and HAProxy as processes that pass requests on to a server under test."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class Proxy:
    """One proxy and one way to configure it.

    Args:
        program: the program, and the name of its Debian package.
        about: the configuration, in words.
        lines: of its location (nginx) or of its backend and frontend (HAProxy).
    """

    program: str
    about: str
    lines: str = ""
    package: str = ""

    def path(self) -> str:
        """The path of the program."""
        found = shutil.which(self.program) or shutil.which(f"/usr/sbin/{self.program}")
        assert found, f"{self.program} is not installed: on Debian, apt-get install {self.package or self.program}"
        return found

    def command(self, folder: Path, listen: Path, port: int) -> list[str]:
        """The command that serves on the socket `listen` what the server at `port` answers."""
        file = folder / "conf"
        if self.program == "nginx":
            file.write_text(_nginx(folder, listen, port, self.lines))
            return [self.path(), "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")]
        file.write_text(_haproxy(listen, port, self.lines))
        return [self.path(), "-db", "-f", str(file)]


def _nginx(folder: Path, listen: Path, port: int, lines: str) -> str:
    paths = "\n".join(f"{name}_temp_path {folder}/{name};" for name in TEMPORARY)
    return f"""
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  {paths}
  access_log off;
  client_max_body_size 0;
  upstream backend {{ server 127.0.0.1:{port}; keepalive 1; }}
  server {{
    listen unix:{listen};
    location / {{ proxy_pass http://backend; {lines} }}
  }}
}}
"""


def _haproxy(listen: Path, port: int, lines: str) -> str:
    return f"""
global
  maxconn 256
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  http-reuse always
listen proxy
  bind unix@{listen}
  server only 127.0.0.1:{port} pool-max-conn 1
  {lines}
"""


KEPT = 'proxy_http_version 1.1; proxy_set_header Connection "";'
STREAMED = "proxy_request_buffering off; proxy_buffering off;"
PROXIES = {
    "nginx": Proxy("nginx", "as installed: HTTP/1.0, a connection for each request", package="nginx-light"),
    "nginx, keep-alive": Proxy("nginx", "HTTP/1.1, connections kept", KEPT, "nginx-light"),
    "nginx, streaming": Proxy("nginx", "the same, bodies passed on as they come", KEPT + STREAMED, "nginx-light"),
    "nginx, upgrade": Proxy(
        "nginx",
        "`Upgrade` passed on and `Connection: upgrade` sent with each request, as recipes for WebSocket say",
        'proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";'
        + STREAMED,
        "nginx-light",
    ),
    "HAProxy": Proxy("haproxy", "`http-reuse always`: callers share connections"),
    "HAProxy, lenient": Proxy(
        "haproxy", "the same with `accept-invalid-http-request`", "option accept-invalid-http-request"
    ),
}


@asynccontextmanager
async def running(proxy: Proxy, folder: Path, port: int) -> AsyncIterator[Path]:
    """Run a proxy before the server at `port`; give the path of its socket."""
    folder.mkdir()
    listen = folder / "s"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(proxy.command(folder, listen, port), stdout=log, stderr=log, cwd=folder)
    try:
        async with asyncio.timeout(SECONDS):
            while not await _accepts(listen):
                assert process.poll() is None, (folder / "log").read_text()
                await asyncio.sleep(0.01)
        yield listen
    finally:
        process.terminate()
        process.wait(SECONDS)


async def _accepts(listen: Path) -> bool:
    """Whether the proxy listens: its socket is there a moment earlier."""
    try:
        _, writer = await asyncio.open_unix_connection(str(listen))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    writer.close()
    return True
