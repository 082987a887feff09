"""scaling_table.py: speed-up, efficiency and spread of any training script that prints "N images/s" after each epoch.

    python scaling_table.py --ranks 1 2 4 -- mpiexec -n {n} python -m mpi4py mpi_by_hand.py --epochs 3
    python scaling_table.py --ranks 1 2 4 -- torchrun --standalone --nproc-per-node {n} ddp.py --epochs 3

{n} becomes the number of ranks. Runs follow each other, since two at once would share the cores they are measured on,
and repeats go around the numbers of ranks, so that a slow moment of the machine touches all of them.
"""

import argparse
import os
import re
import subprocess
import sys
from statistics import mean, median


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks; 1 is the baseline")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that a run may take")
    parser.add_argument("--pattern", default=r"([\d,.]+) images/s", help="where the output has the speed of an epoch")
    parser.add_argument("command", nargs="+", help="after --, with {n} for the number of ranks")
    args = parser.parse_args()
    if 1 not in args.ranks:
        parser.error("--ranks needs a 1: everything is compared with one rank")
    return args


def measure(n, args):
    """Run the command on n ranks, and return its mean images/s. The first epoch also pays for starting up."""
    command = [word.replace("{n}", str(n)) for word in args.command]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    epochs = [float(speed.replace(",", "")) for speed in re.findall(args.pattern, ran.stdout)]
    if ran.returncode or len(epochs) < 2:
        what = "failed, or printed the speed of less than 2 epochs"
        sys.exit(f"{ran.stdout}{ran.stderr}\n`{' '.join(command)}` {what}.")
    return mean(epochs[1:])


def main():
    args = parse_arguments()
    speeds = {n: [] for n in args.ranks}
    for repeat in range(1, args.repeats + 1):
        for n in args.ranks:
            speed = measure(n, args)
            speeds[n].append(speed)
            print(f"repeat {repeat} of {args.repeats}, {n} ranks: {speed:,.0f} images/s", flush=True)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    one = median(speeds[1])
    print(f"\n{'ranks':>6} {'images/s':>10} {'slowest':>10} {'fastest':>10} {'speed-up':>9} {'efficiency':>11}")
    for n, runs in sorted(speeds.items()):
        mark = "*" if n > cores else " "
        row = f"{n:>5}{mark} {median(runs):>10,.0f} {min(runs):>10,.0f} {max(runs):>10,.0f}"
        print(f"{row} {median(runs) / one:>9.2f} {median(runs) / one / n:>11.0%}")
    for n, runs in sorted(speeds.items()):
        if median(runs) > n * one:
            print(f"{n} ranks can't be {median(runs) / one:.2f} times as fast as one: something slowed down one rank.")
    print(f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}; * more ranks than this machine has cores")


if __name__ == "__main__":
    main()
