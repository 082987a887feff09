"""The command `workshop faults`: the fault injection of 13b_runs_that_survive in a terminal."""

import argparse

from workshop_lib.cli.arguments import Parser


def faults_arguments(parser: Parser) -> None:
    parser.runs(faults)
    parser.add_argument(
        "--every", type=int, default=20, metavar="N", help="Steps from one fault to the next, on average."
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="Seed that decides when, on which rank, and which faults happen.",
    )
    parser.add_argument(
        "--kinds", default="kill,crash,raise,stop", metavar="LIST", help="Kinds of faults, separated by commas."
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="X",
        help="End each of the two trainings after this many seconds.",
    )
    parser.add_argument("command", metavar="COMMAND", help="A script, or any command.")
    # Everything that follows the command's first word belongs to the command, options included.
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="The command's own options.")


def faults(command: str, options: list[str], every: int, seed: int, kinds: str, timeout: float) -> None:
    """Train without faults and then with them, and compare the useful steps per second and the final weights.

    The training runs in an empty folder. It must print 'step N' after each step, and each rank must print 'rank R has
    weights DIGEST' at the end.
    """
    from workshop_lib.lessons.runs_that_survive import fault_injection  # it imports ipyparallel

    wanted = [kind.strip() for kind in kinds.split(",")]
    print(fault_injection.score([command, *options], every, seed, wanted, timeout))
