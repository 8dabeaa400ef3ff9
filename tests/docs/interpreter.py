"""A Python process that runs the blocks of a page one after another in one namespace.

It is started as a script, by any Python: code comes as lines of JSON on standard input, and for each a line of JSON
goes to the file descriptor that the first argument names.
"""

import json
import os
import sys
import traceback


def main() -> None:
    """Run blocks until standard input ends."""
    answers = os.fdopen(int(sys.argv[1]), "w")
    lines = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = ""  # of this file's folder
    namespace = {"__name__": "__main__"}
    for line in lines:
        block = json.loads(line)
        try:
            exec(compile(block["text"], block["name"], "exec"), namespace)
        except BaseException:
            answer = traceback.format_exc()
        else:
            answer = ""
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
