"""The imagined file server of 09_feeding_the_ranks: what a read takes there, alone and beside other ranks.

It needs some time for each `open` and each byte, and shares its time equally among the ranks that read. An image of
MNIST stands for one of 224 x 224 pixels in three colors, so each byte counts SCALE times.
"""

from pathlib import Path

import numpy as np

OPEN_S = 0.25e-3
BYTES_PER_S = 4e9
SCALE = 224 * 224 * 3 // (28 * 28)
TITLE = f"an imagined file server: {BYTES_PER_S / 1e9:g} GB/s, {1e3 * OPEN_S:g} ms per open"


def write_files(folder: Path, images: np.ndarray, rows: int) -> None:
    """Write images, uint8 [n, 28, 28], to a folder: `rows` of them to each of the files 0, 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, begin in enumerate(range(0, len(images), rows)):
        (folder / str(number)).write_bytes(images[begin : begin + rows].tobytes())


def seconds_of(opens: int, nbytes: int) -> float:
    """What this many files and (unscaled) bytes take if only one rank reads."""
    return opens * OPEN_S + SCALE * nbytes / BYTES_PER_S


def ends_of(requests: list[tuple[float, float]]) -> list[float]:
    """When each request ends, in seconds. A request has its start, and the seconds that it takes a server that's alone.

    The server works on all requests that have started, and gives each of them the same share of its time.
    """
    left = [seconds for _, seconds in requests]
    ends = [start for start, _ in requests]
    now_s = min(ends)
    unfinished = {number for number, seconds in enumerate(left) if seconds > 0}
    while unfinished:
        begun = [number for number in unfinished if requests[number][0] <= now_s]
        later = [requests[number][0] for number in unfinished if requests[number][0] > now_s]
        if not begun:
            now_s = min(later)
            continue
        share_s = min(left[number] for number in begun)
        if later:
            share_s = min(share_s, (min(later) - now_s) / len(begun))
        now_s += share_s * len(begun)
        for number in begun:
            left[number] -= share_s
            if left[number] < 1e-12:
                ends[number] = now_s
                unfinished.remove(number)
    return ends
