"""A link between two hosts: packets of two TUN devices, passed on late, not at all, or at once.

    python benchmarks/relay.py FILE FILE     # numbers of the devices' open files

Each line of the standard input is `DELAY LOSS`, in seconds and as a share, and holds from then on. It ends with the
input.
"""

import heapq
import os
import random
import select
import sys
import time

LARGEST = 65_536  # bytes of a packet


def relay(first: int, second: int) -> None:
    """Passes packets on until the standard input ends."""
    delay, loss, number = 0.0, 0.0, 0
    rng = random.Random(0)
    waiting: list[tuple[float, int, int, bytes]] = []  # when, in which order, where to, what
    other = {first: second, second: first}
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable = select.select([first, second, 0], [], [], pause)[0]
        if 0 in readable:
            order = os.read(0, LARGEST).decode()
            if not order:
                return
            delay, loss = map(float, order.splitlines()[-1].split())
        now = time.monotonic()
        for device in (first, second):
            if device in readable:
                packet = os.read(device, LARGEST)
                if rng.random() >= loss:
                    number += 1
                    heapq.heappush(waiting, (now + delay, number, other[device], packet))
        while waiting and waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(waiting)
            os.write(device, packet)


if __name__ == "__main__":
    relay(int(sys.argv[1]), int(sys.argv[2]))
