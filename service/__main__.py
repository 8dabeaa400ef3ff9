"""`python -m service serve | check | settings | health`. Parses flags; command_line.py does the work.

`health` imports nothing of the service, so that a container can afford to run it every few seconds.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

HERE = ("127.0.0.1", "::1", "localhost")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 it cannot, 2 wrong usage."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="python -m service", description="Serve exported models over REST and gRPC.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = partial(commands.add_parser, allow_abbrev=False)
    serve = add("serve", help="serve the models of the store")
    check = add("check", help="say what would be served, and on what, without serving")
    add("settings", help="list every setting with its variable, default and meaning")
    health = add("health", help="ask a running service whether it is ready; exit 0 or 1")
    health.add_argument("--url", help="default: this machine, by INLAY_PORT, https where INLAY_TLS_CERT is set")
    health.add_argument("--cert", help="PEM file to show where callers must; default there: the service's own")
    health.add_argument("--key", help="its private key")
    if command in ("serve", "check"):
        from service import command_line

        command_line.add_flags(serve)
        command_line.add_flags(check)
    if command is not None and command not in commands.choices:
        parser.error(_no_command(command, commands.choices))
    options, unread = parser.parse_known_args(given)
    if unread:
        from service.command_line import misused

        parser.error(misused(options.command, unread))
    return _run(options)


def _no_command(word: str, commands: Iterable[str]) -> str:
    """What is wrong with the first word that is no flag; not shown: it may be a key before a `serve`."""
    from service.command_line import nearest

    return f"COMMAND comes first, one of {', '.join(commands)}{nearest(word, commands)}"


def _run(options: argparse.Namespace) -> int:
    if options.command == "health":
        return _health(options.url or _own_url(), options.cert, options.key)
    from service import command_line

    flags: dict[str, Any] = {key: value for key, value in vars(options).items() if key != "command"}
    return command_line.COMMANDS[options.command](flags)


def _own_url() -> str:
    scheme = "https" if os.environ.get("INLAY_TLS_CERT") else "http"
    return f"{scheme}://127.0.0.1:{os.environ.get('INLAY_PORT', '8080')}"


def _health(url: str, cert: str | None, key: str | None) -> int:
    from urllib.error import URLError
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener

    try:
        # a proxy from the environment is no way to one's own port
        handlers = [ProxyHandler({}), *([HTTPSHandler(context=_tls(url, cert, key))] if url[:6] == "https:" else [])]
        with build_opener(*handlers).open(f"{url.rstrip('/')}/health/ready", timeout=3) as answer:
            print(answer.read().decode())
            return 0
    except (URLError, OSError, ValueError) as error:
        print(f"{url} is not ready: {error}", file=sys.stderr)
        return 1


def _tls(url: str, cert: str | None, key: str | None) -> "ssl.SSLContext":
    """The service on this machine is taken at its word: its certificate names another host, and it is told nothing."""
    import ssl

    context = ssl.create_default_context()
    if urlsplit(url).hostname in HERE:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if not cert and os.environ.get("INLAY_TLS_CLIENT_CA"):
        cert, key = os.environ.get("INLAY_TLS_CERT"), os.environ.get("INLAY_TLS_KEY")
    if cert:
        context.load_cert_chain(cert, key)
    return context


if __name__ == "__main__":
    sys.exit(main())
