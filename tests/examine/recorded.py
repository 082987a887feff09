"""Observations of a small, correct run, as two ranks' recorders would have written them, for tests to change."""

from workshop_lib.examine.observations import RankLog, Run

NAMES = ["first.weight", "last.weight"]
STEPS = 8
STEP_S = 0.1


def forward(rank: int, step: int) -> dict:
    return {
        "model": 0,
        "loader": 0,
        "training": True,
        "random": {"torch": f"{rank} {step}", "python": rank, "numpy": rank},
        "begin_s": step * STEP_S,
        "seconds": 0.02,
        "drew": True,
        "size": 2,
        "samples": [step * 4 + 2 * rank, step * 4 + 2 * rank + 1],
        "closure": False,
    }


def step(rank: int, number: int) -> dict:
    return {
        "kind": "step",
        "step": number,
        "time": number * STEP_S,
        "end_s": number * STEP_S + 0.09,
        "forwards": [forward(rank, number)],
        "backwards": [[number * STEP_S + 0.03, 0.03, True]],
        "data_s": 0.001,
        "collectives": {},
        "clips": [[1.5, "train.py:9", False]],
        "after_backward": 3.0,
        "ready": 3.0,
        "losses": [["train.py:7", 2, "mean", 1.0, 0.7, "cross_entropy"]],
        "roots": [0.7],
        "kept": False,
        "drew_data": [],
        "weights": [number, 10 * number],
        "weights_model": 0,
        "gradients": [number + 100, number + 200],
        "gradients_of": NAMES,
        "without_gradient": [],
        "optimizers": [{"name": "SGD", "lr": [0.1]}],
        "stepped_names": NAMES,
        "threads": 1,
    }


def epoch(rank: int, number: int) -> dict:
    sampler = {"num_replicas": 2, "rank": rank, "shuffle": True, "seed": 0, "epoch": number - 1}
    return {
        "kind": "epoch",
        "step": 4 * (number - 1),
        "loader": 0,
        "epoch": number,
        "dataset": "Points",
        "samples": 16,
        "batches": 4,
        "batch": 2,
        "sampler": "DistributedSampler",
        "distributed": sampler,
    }


def evaluation(rank: int) -> dict:
    samples = [1000 + rank, 2000 + rank]
    return {
        "kind": "evaluation",
        "step": STEPS,
        "line": "train.py:20",
        "forwards": [{**forward(rank, 0), "loader": 1, "samples": samples}],
        "collectives": {"all_reduce between": [1, 8, 0.001]},
        "buffers": [5, 6],
    }


def rank(number: int) -> RankLog:
    parameters = [[name, [2], True, False] for name in NAMES]
    model = {
        "kind": "model",
        "step": 1,
        "model": 0,
        "ddp": True,
        "fsdp": False,
        "around_ddp": False,
        "parameters": parameters,
        "buffers": ["mean", "var"],
        "meshes": [],
        "device": "cpu",
        "accelerators": 0,
    }
    ddp = {"kind": "ddp", "step": 0, "before": [1, 1], "after": [1, 1], "names": NAMES}
    records = [
        {"kind": "start", "step": 0, "pid": 0, "main_thread": 0, "time": 0.0},
        {"kind": "group", "step": 0, "size": 2, "rank": number},
        {**ddp, "broadcast_buffers": True, "group": 2},
        model,
    ]
    for which in (1, 2):
        order = [(index * (2 * which + 1) + number) % 16 for index in range(0, 16, 2)]
        records += [epoch(number, which), {"kind": "indices", "step": 0, "loader": 0, "epoch": which, "values": order}]
        records += [step(number, 4 * (which - 1) + each) for each in range(1, 5)]
    records.append(evaluation(number))
    if number == 0:
        records.append({"kind": "save", "step": STEPS, "path": "/tmp/model.pt", "shares": 0, "line": "train.py:30"})
    records.append({"kind": "end", "step": STEPS, "weights": [9, 90], "buffers": [5, 6], "time": 1.0})
    return RankLog(records)


def run() -> Run:
    return Run([rank(0), rank(1)])
