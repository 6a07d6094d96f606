"""A rank that measures nothing and goes wrong when it is told to.

{"do": "die", "rank": r}   {"do": "sleep", "rank": r, "seconds": s}   {"do": "stop"}
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    rank = int(os.environ["RANK"])
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            return
        answer = {"ok": True, "rank": rank}
        if command["do"] == "die":
            if command["rank"] == rank:
                sys.stderr.write("this was the last line\n")
                sys.stderr.flush()
                sys.exit(7)
            answer = {"ok": False, "type": "RuntimeError", "error": "Connection closed by peer"}
        elif command["rank"] == rank:
            time.sleep(command["seconds"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
