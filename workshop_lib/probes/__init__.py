"""What an exercise's check runs on every rank: a probe calls the learner's function and reports what it did,
as plain data. Whether that is right is judged in the notebook.
"""

from mpi4py import MPI


def prepare(probe, function, ready=None) -> None:
    """Called on every rank before the clock of a check starts. To receive `probe` and `function` is to
    import what they need, which takes seconds on fresh ranks; `ready` does what else takes long once.
    """
    if ready is not None:
        ready()


def attempt(probe, function) -> dict:
    """Called on every rank. {"facts": what `probe(comm, function)` reports}, or {"unsolved": True} when the
    learner's function is still the stub.
    """
    try:
        return {"facts": probe(MPI.COMM_WORLD, function)}
    except NotImplementedError:
        return {"unsolved": True}
