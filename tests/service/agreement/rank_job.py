"""One rank of a job, as a process: looks shapes up step by step, waits where it is told to, and ends."""

from __future__ import annotations

import json
import sys
from typing import Any

from warpplan.service.client import ChoiceDiffers, Client


def main(url: str, steps: list[list[int]], options: dict[str, Any]) -> None:
    """``steps`` lists the sizes M to look up in each; before a step the rank waits for a line of standard input."""
    with Client(url, timeout=60, **options) as client:
        for number, sizes in enumerate(steps):
            sys.stdin.readline()
            client.begin_step(number)
            try:
                for m in sizes:
                    client.config("gemm", M=m, N=1024, K=2048)
            except ChoiceDiffers as error:
                print(f"refused: {error}", flush=True)
                return
            print(client.choices_digest, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
