"""Do ranks draw the random numbers they should: others where noise should differ, the same where it must agree?"""

from collections.abc import Iterator

from workshop_lib.examine.findings import found, ok
from workshop_lib.examine.observations import Run
from workshop_lib.findings import Finding
from workshop_lib.words import plural

SAME_SHARE = 0.9
FEWEST_STEPS = 2


def _states(run: Run, name: str) -> dict[int, list]:
    """The state of a generator when each step's first forward pass begins, on all ranks, by step."""
    states = {}
    for step in run.common_steps:
        forwards = [log.forwards(step) for log in run.ranks]
        if all(each and each[0].random is not None for each in forwards):
            states[step] = [(each[0].random or {}).get(name) for each in forwards]
    return states


def _same(states: dict[int, list]) -> list[int]:
    return [step for step, each in states.items() if len(set(each)) == 1]


def in_forward(run: Run) -> Iterator[Finding]:
    """Does dropout differ between ranks?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    draws = [step for step in run.common_steps if all(any(f.drew for f in log.forwards(step)) for log in run.ranks)]
    if len(draws) < FEWEST_STEPS:
        return
    states = {step: each for step, each in _states(run, "torch").items() if step in draws}
    same = _same(states)
    if len(same) >= SAME_SHARE * len(states):
        yield found(
            "same-dropout",
            f"in {plural(len(same), 'step')}, all ranks drew the same random numbers in the forward pass",
            step=same[0],
        )
    else:
        yield ok("dropout", "each rank draws random numbers of its own in the forward pass")


def in_loading(run: Run) -> Iterator[Finding]:
    """Does augmentation differ between ranks?"""
    if run.size == 1 or not run.is_data_parallel:
        return
    for name in ("torch", "python", "numpy"):
        draws = [step for step in run.common_steps if all(name in log.steps[step].drew_data for log in run.ranks)]
        states = {step: each for step, each in _states(run, name).items() if step in draws}
        same = _same(states)
        if len(states) >= FEWEST_STEPS and len(same) >= SAME_SHARE * len(states):
            yield _same_augmentation(
                f"in {plural(len(same), 'step')}, all ranks drew the same numbers ({name})", same[0]
            )
            return
        if _same_in_workers(run, name):
            seen = f"all ranks' loading workers, or several of one rank, drew the same numbers ({name})"
            yield _same_augmentation(seen, 1)
            return


def _same_in_workers(run: Run, name: str) -> bool:
    """Whether two loading workers, of one rank or of several, began with the same random numbers, and used them."""
    firsts = [fetches[0].random.get(name) for log in run.ranks for fetches in log.workers if fetches]
    drew = [name in fetch.drew for log in run.ranks for fetches in log.workers for fetch in fetches]
    return len(set(firsts)) < len(firsts) and all(drew)


def _same_augmentation(seen: str, step: int) -> Finding:
    return found("same-augmentation", f"{seen} while loading", step=step)
