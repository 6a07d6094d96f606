"""A rank that measures nothing: answers commands in the ways that a real one could, good and bad.

{"do": "echo", "value": v}   {"do": "noise"}   {"do": "die", "rank": r, "how": "signal" | "exit"}
{"do": "fault", "rank": r}   {"do": "sleep", "rank": r, "seconds": s}   {"do": "stop"}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> None:
    rank = int(os.environ["RANK"])
    for line in sys.stdin:
        command = json.loads(line)
        mine = command.get("rank", rank) == rank
        answer = {"ok": True, "rank": rank, "value": command.get("value")}
        if command["do"] == "stop":
            return
        if command["do"] == "noise":
            answer["value"] = "x" * 300_000  # longer than a pipe holds
        elif command["do"] == "fault" and mine:
            answer = {"ok": False, "type": "RuntimeError", "error": "made up"}
        elif command["do"] == "die":
            if mine:
                sys.stderr.write("this was the last line\n")
                sys.stderr.flush()
                if command["how"] == "signal":
                    os.kill(os.getpid(), signal.SIGKILL)
                sys.exit(7)
            answer = {"ok": False, "type": "RuntimeError", "error": "Connection closed by peer"}
        elif command["do"] == "sleep" and mine:
            time.sleep(command["seconds"])
        elif command["do"] == "environment":
            answer["value"] = {key: os.environ.get(key) for key in command["names"]}
        text = json.dumps(answer) + "\n"
        sys.stdout.write(text[:1])
        sys.stdout.flush()
        sys.stdout.write(text[1:])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
