"""A rank that measures nothing and goes wrong when it is told to.

{"do": "die", "rank": r}   {"do": "sleep", "rank": r, "seconds": s}   {"do": "stop"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing.connection import Connection


def main() -> None:
    rank, session = int(os.environ["RANK"]), Connection(int(sys.argv[1]))  # imports nothing that takes long
    while (command := json.loads(session.recv_bytes()))["do"] != "stop":
        answer = {"ok": True, "rank": rank}
        if command["do"] == "die":
            if command["rank"] == rank:
                sys.stderr.write("this was the last line\n")
                sys.exit(7)
            answer = {"ok": False, "type": "RuntimeError", "error": "Connection closed by peer"}
        elif command["rank"] == rank:
            time.sleep(command["seconds"])
        session.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
