"""Observations of a small, correct run, as two ranks' recorders would have written them, for tests to change."""

from workshop_lib.examine.observations import RankLog, Run
from workshop_lib.examine.records import (
    Backward,
    Clip,
    CollectiveCalls,
    DdpRecord,
    EndRecord,
    EpochRecord,
    EvaluationRecord,
    Forward,
    GroupRecord,
    IndicesRecord,
    LossPart,
    ModelRecord,
    OptimizerStep,
    ParameterRecord,
    Record,
    SamplerSettings,
    SaveRecord,
    StartRecord,
    StepRecord,
)

NAMES = ["first.weight", "last.weight"]
STEPS = 8
STEP_S = 0.1


def forward(rank: int, step: int) -> Forward:
    return Forward(
        model=0,
        loader=0,
        training=True,
        random={"torch": f"{rank} {step}", "python": rank, "numpy": rank},
        begin_s=step * STEP_S,
        seconds=0.02,
        drew=True,
        size=2,
        samples=[step * 4 + 2 * rank, step * 4 + 2 * rank + 1],
    )


def loss(count: int = 2, reduction: str = "mean", weight: float = 1.0, name: str = "cross_entropy") -> LossPart:
    return LossPart("train.py:7", count, reduction, name, value=0.7, weight=weight)


def step(rank: int, number: int) -> StepRecord:
    return StepRecord(
        step=number,
        time=number * STEP_S,
        end_s=number * STEP_S + 0.09,
        forwards=[forward(rank, number)],
        backwards=[Backward(number * STEP_S + 0.03, 0.03, sync=True)],
        data_s=0.001,
        clips=[Clip(1.5, "train.py:9", scaled=False)],
        after_backward=3.0,
        ready=3.0,
        losses=[loss()],
        roots=[0.7],
        kept=False,
        weights=[number, 10 * number],
        weights_model=0,
        gradients=[number + 100, number + 200],
        gradients_of=NAMES,
        without_gradient=[],
        optimizers=[OptimizerStep("SGD", [0.1])],
        stepped_names=NAMES,
        threads=1,
    )


def epoch(rank: int, number: int, loader: int = 0, samples: int = 16) -> EpochRecord:
    return EpochRecord(
        step=4 * (number - 1),
        loader=loader,
        epoch=number,
        dataset="Points",
        samples=samples,
        batches=4,
        batch=2,
        sampler="DistributedSampler",
        distributed=SamplerSettings(2, rank, shuffle=True, seed=0, epoch=number - 1),
    )


def evaluation(rank: int) -> EvaluationRecord:
    evaluated = forward(rank, 0)
    evaluated.loader = 1
    evaluated.samples = [1000 + rank, 2000 + rank]
    return EvaluationRecord(
        step=STEPS,
        line="train.py:20",
        forwards=[evaluated],
        collectives={"all_reduce between": CollectiveCalls(1, 8, 0.001)},
        buffers=[5, 6],
    )


def rank(number: int) -> RankLog:
    parameters = [ParameterRecord(name, [2], trains=True, shared_out=False) for name in NAMES]
    records: list[Record] = [
        StartRecord(pid=0, main_thread=0),
        GroupRecord(size=2),
        DdpRecord(before=[1, 1], after=[1, 1], broadcast_buffers=True, group=2),
        ModelRecord(step=1, model=0, ddp=True, parameters=parameters, buffers=["mean", "var"], device="cpu"),
    ]
    for which in (1, 2):
        order = [(index * (2 * which + 1) + number) % 16 for index in range(0, 16, 2)]
        records += [epoch(number, which), IndicesRecord(loader=0, epoch=which, values=order)]
        records += [step(number, 4 * (which - 1) + each) for each in range(1, 5)]
    records.append(evaluation(number))
    if number == 0:
        records.append(SaveRecord(step=STEPS, path="/tmp/model.pt", shares=0, line="train.py:30"))
    records.append(EndRecord(step=STEPS, weights=[9, 90], buffers=[5, 6]))
    return RankLog(records)


def run() -> Run:
    return Run([rank(0), rank(1)])
