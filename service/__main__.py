"""`python -m service serve | check | settings | health`. Parses flags; command_line.py does the work.

`health` imports nothing of the service, so that a container can afford to run it every few seconds.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8080"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 it cannot, 2 wrong usage."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="python -m service", description="Serve exported models over REST and gRPC.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve the models of the store")
    check = commands.add_parser("check", help="say what would be served, and on what, without serving")
    commands.add_parser("settings", help="list every setting with its variable, default and meaning")
    health = commands.add_parser("health", help="ask a running service whether it is ready; exit 0 or 1")
    health.add_argument("--url", default=DEFAULT_URL, help="default: %(default)s")
    if command in ("serve", "check"):
        from service import command_line

        command_line.add_flags(serve)
        command_line.add_flags(check)
    return _run(parser.parse_args(given))


def _run(options: argparse.Namespace) -> int:
    if options.command == "health":
        return _health(options.url)
    from service import command_line

    flags: dict[str, Any] = {key: value for key, value in vars(options).items() if key != "command"}
    return command_line.COMMANDS[options.command](flags)


def _health(url: str) -> int:
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    try:
        # a proxy from the environment is no way to one's own port
        with build_opener(ProxyHandler({})).open(f"{url.rstrip('/')}/health/ready", timeout=3) as answer:
            print(answer.read().decode())
            return 0
    except (URLError, OSError, ValueError) as error:
        print(f"{url} is not ready: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
