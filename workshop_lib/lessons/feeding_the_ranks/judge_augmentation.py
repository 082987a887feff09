"""Judges `generator`, the third exercise of 09_feeding_the_ranks: repeatable random numbers per rank and step."""

from collections.abc import Callable, Iterator

from workshop_lib.judge.play import Edit, played

SEED = 7
RANKS = 3
STEPS = 4
DRAWS = 3
PLACES = [(rank, step) for rank in range(RANKS) for step in range(STEPS)]


def play_generator(generator: Callable, comm) -> Iterator[tuple]:
    first = _drawn(generator, SEED, PLACES)
    repeated = first == _drawn(generator, SEED, PLACES[::-1])
    one = generator(SEED, 0, 1) is generator(SEED, 1, 0)
    observed = "asked for every rank and step once more, it drew other numbers:"
    yield "asked again, it draws the same numbers, so a run can be resumed", [repeated, one], observed
    # The first place that draws the same numbers, for each place. Equal lists mean equal mistakes.
    same = [first.index(numbers) for numbers in first]
    at = next((at for at, earlier in enumerate(same) if earlier != at), 0)
    (rank, step), (other, earlier) = PLACES[at], PLACES[same[at]]
    observed = f"rank {rank} in step {step} draws what rank {other} draws in step {earlier}."
    yield "every rank draws different numbers in every step", same, observed
    differs = first != _drawn(generator, SEED + 1, PLACES)
    observed = f"the seeds {SEED} and {SEED + 1} give the same numbers."
    yield (
        "a different seed draws different numbers",
        differs,
        observed,
        "use the seed, too: else all runs draw the same.",
    )


def _drawn(generator: Callable, seed: int, order: list[tuple[int, int]]) -> list[list[float]]:
    """The first numbers of each rank and step, in the order of PLACES; their generators are requested in `order`."""
    numbers = {place: generator(seed, *place).random(DRAWS).tolist() for place in order}
    return [numbers[place] for place in PLACES]


NUMBERS = "[seed, rank, step]"
generator = played(
    "generator",
    "09_feeding_the_ranks",
    play_generator,
    [
        Edit(
            "without a seed it draws different numbers after a restart, and nobody can repeat the run.", (NUMBERS, "")
        ),
        Edit(
            "one generator for all calls: what it draws depends on the calls before, which a restart forgets.",
            ("step):", f"step, kept=np.random.default_rng({SEED})):"),
            (f"np.random.default_rng({NUMBERS})", "kept"),
        ),
        Edit(
            "all ranks draw the same in every step: the first image always moves in the same way, on every rank.",
            (NUMBERS, "seed"),
        ),
        Edit(
            "all ranks draw alike: image i moves in the same way on each of them. Use the rank, too.",
            (NUMBERS, "[seed, step]"),
        ),
        Edit(
            "it starts over in each step: the first image of every batch moves in the same way. Use the step, too.",
            (NUMBERS, "[seed, rank]"),
        ),
        Edit("a sum isn't enough: give all of them, as a list.", (NUMBERS, "seed + rank + step")),
        Edit(
            "on rank 0 the step doesn't matter, nor the rank in step 0. Give all of them, as a list.",
            (NUMBERS, "seed + rank * step"),
        ),
    ],
    communicates=False,
    unknown="`np.random.default_rng` also takes a list of numbers, and a different list draws different numbers.",
)
