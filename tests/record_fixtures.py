"""Made-up run records for tests of tables and figures. Test fixtures: nothing here was measured."""

from workshop_lib.training.options import TrainOptions

CPU = "Fixture CPU 3000"


def run(
    backend="mpi",
    ranks=1,
    speeds=(7000.0, 8000.0, 8200.0),
    accuracies=(0.975, 0.988, 0.9911),
    batch=64,
    samples=60_000,
    **changes,
):
    """One training record; `speeds` are samples/s of its epochs. `changes` replace top-level fields."""
    epochs = [
        {
            "epoch": n,
            "seconds": samples / speed,
            "samples_per_s": speed,
            "train_loss": 0.3 / n,
            "train_accuracy": accuracy,
            "test_loss": 0.1 / n,
            "test_accuracy": accuracy,
            "lr": 0.05,
            "communication_s": 0.1 * samples / speed if backend == "mpi" else None,
        }
        for n, (speed, accuracy) in enumerate(zip(speeds, accuracies, strict=False), 1)
    ]
    what = TrainOptions().as_dict() | {
        "backend": backend,
        "epochs": len(epochs),
        "batch_size": batch,
        "world_size": ranks,
        "global_batch": batch * ranks,
        "threads_per_rank": 1,
        "binding": "none",
        "seed": 0,
        "launcher": "engines",
        "oversubscribed": ranks > 2,
        "train_samples": None,
    }
    where = {"hosts": ["fixture"] * ranks, "cpu_model": CPU, "cores": 2, "device": "cpu"}
    reached = [epoch for epoch in epochs if epoch["test_accuracy"] >= 0.99]
    record = {
        "schema": 1,
        "kind": "train",
        "started": "2000-01-01T00:00:00Z",
        "what": what,
        "where": where,
        "epochs": epochs,
        "seconds_to_99": 25.0 / ranks if reached else None,
        "weights_sha256": ["fixture"] * ranks,
        "ranks_identical": True,
        "stopped": False,
    }
    return record | changes


def sweep(backends=("mpi", "ddp"), counts=(1, 2, 4), repeats=3, batch=64):
    """Records shaped like a small sweep: mpi scales well, ddp less, 4 ranks on 2 cores gain nothing."""
    share = {1: 1.0, 2: 0.95, 4: 0.5, 8: 0.3}
    cost = {"mpi": 1.0, "ddp": 0.68}
    found = []
    for backend in backends:
        for ranks in counts:
            for repeat in range(repeats):
                kept = share[ranks] * (1.0 if ranks == 1 else cost.get(backend, 0.8))
                steady = 8000 * ranks * kept * (1 + 0.03 * (repeat - 1))
                speeds = (0.8 * steady, steady, 1.01 * steady)
                best = tuple(a - 0.0004 * ranks + 0.0006 * repeat for a in (0.975, 0.988, 0.9911))
                found.append(run(backend, ranks, speeds, best, batch))
    return found


def weak_sweep(names=("mpi",)):
    """Records shaped like a sweep of which each rank has the same number of samples."""
    records = sweep(names)
    for record in records:
        samples = record["what"]["train_samples"] = 10_000 * record["what"]["world_size"]
        for epoch in record["epochs"]:
            epoch["seconds"] = samples / epoch["samples_per_s"]
    return records
