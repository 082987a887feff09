"""What the ranks of one run did, as their recorders wrote it down."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from workshop_lib.examine.records import (
    DdpRecord,
    EndRecord,
    EpochRecord,
    EvaluationRecord,
    FetchRecord,
    Forward,
    GroupRecord,
    IndicesRecord,
    LabelsRecord,
    ModelRecord,
    Record,
    StepRecord,
    parse,
)
from workshop_lib.ranks.call.messages import Frame

Kind = TypeVar("Kind", bound=Record)


@dataclass
class RankLog:
    """The records of one rank, in the order in which it wrote them."""

    records: list[Record] = field(default_factory=list)
    workers: list[list[FetchRecord]] = field(default_factory=list)  # what each of its loading workers did first

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind)]

    def first(self, kind: type[Kind]) -> Kind | None:
        return next(iter(self.of(kind)), None)

    @property
    def end(self) -> EndRecord:
        """How the rank ended; an empty record if it didn't come to its end."""
        return self.first(EndRecord) or EndRecord()

    @property
    def has_ended(self) -> bool:
        return self.first(EndRecord) is not None

    @property
    def group_size(self) -> int | None:
        """The number of ranks in the process group; None if the script never made one."""
        group = self.first(GroupRecord)
        return group.size if group else None

    @cached_property
    def steps(self) -> dict[int, StepRecord]:
        return {record.step: record for record in self.of(StepRecord)}

    @property
    def has_model(self) -> bool:
        return self.first(ModelRecord) is not None

    @property
    def model(self) -> ModelRecord:
        """The model that is trained; of several, the first one that is wrapped, or else the first one.

        An empty record if there is none.
        """
        models = self.of(ModelRecord)
        wrapped = [each for each in models if each.ddp or each.fsdp]
        return next(iter([*wrapped, *models]), ModelRecord())

    def forwards(self, step: int) -> list[Forward]:
        """The trained model's forward passes in a step."""
        return [each for each in self.steps[step].forwards if each.model == self.model.model]

    def is_by_closure(self, step: int) -> bool:
        """Whether the optimizer itself calls the model, as L-BFGS does, several times in a step."""
        return any(forward.closure for forward in self.forwards(step))

    def samples(self, step: int) -> list[int]:
        return [digest for forward in self.forwards(step) for digest in forward.samples or []]

    @cached_property
    def orders(self) -> dict[tuple[int, int], list[int]]:
        """The indices of samples in the order in which they were loaded, by loader and epoch."""
        return _by_epoch(self.of(IndicesRecord))

    @cached_property
    def labels(self) -> dict[tuple[int, int], list[list[int]]]:
        """The labels of the first samples, in the order in which they were loaded, by loader and epoch."""
        return _by_epoch(self.of(LabelsRecord))

    @cached_property
    def loaders(self) -> dict[int, list[EpochRecord]]:
        """What each loader was like at the start of each of its epochs."""
        loaders: dict[int, list[EpochRecord]] = {}
        for record in self.of(EpochRecord):
            loaders.setdefault(record.loader, []).append(record)
        return loaders

    def passes(self, loader: int, whole: bool = False) -> list[EpochRecord]:
        """The epochs of a loader that the script trained on, without peeks at a batch and evaluations.

        whole: leave out those that were cut off.
        """
        epochs = self.loaders[loader]
        next_steps = [each.step for each in epochs[1:]] + [max(self.steps, default=0)]
        passes = [each for each, next_step in zip(epochs, next_steps, strict=True) if next_step > each.step]
        return [each for each in passes if not whole or self._is_whole(each)]

    def _is_whole(self, epoch: EpochRecord) -> bool:
        order = self.orders.get((epoch.loader, epoch.epoch), [])
        return bool(epoch.batches and len(order) > (epoch.batches - 1) * (epoch.batch or 1))

    @cached_property
    def training_loaders(self) -> set[int]:
        forwards = [forward for step in self.steps for forward in self.forwards(step)]
        return {forward.loader for forward in forwards if forward.loader is not None}

    @cached_property
    def evaluations(self) -> list[EvaluationRecord]:
        """Evaluations of the trained model."""
        number = self.model.model
        return [each for each in self.of(EvaluationRecord) if any(one.model == number for one in each.forwards)]


def _by_epoch(records: Sequence[IndicesRecord | LabelsRecord]) -> dict[tuple[int, int], list]:
    values: dict[tuple[int, int], list] = {}
    for record in records:
        values.setdefault((record.loader, record.epoch), []).extend(record.values)
    return values


@dataclass
class Run:
    """One observed run. how: "ended", "failed", "stuck" (the ranks wait for each other), or "time" (time was up)."""

    ranks: list[RankLog]
    how: str = "ended"
    stacks: dict[int, list[Frame]] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    repeated: "Run | None" = None  # the first step on one rank, with the samples of all ranks
    # How many times the repeated step's gradient this run's is, and by which share they differ otherwise.
    against_one: tuple[float, float] | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def common_steps(self) -> list[int]:
        """The steps that all ranks took with the trained model, up to the optimizer's part."""
        taken = [{step for step, each in log.steps.items() if each.is_whole} for log in self.ranks if log.has_model]
        both = set.intersection(*taken) if len(taken) == self.size else set()
        return sorted(step for step in both if all(rank.forwards(step) for rank in self.ranks))

    @property
    def trains(self) -> bool:
        return bool(self.common_steps) and all(rank.has_model for rank in self.ranks)

    @property
    def joined(self) -> bool:
        """Whether all ranks are in one process group."""
        return all(rank.group_size == self.size for rank in self.ranks)

    @cached_property
    def same_model(self) -> bool:
        """Whether the ranks' models have the same parameters."""
        named = [self.named_shapes(rank) for rank in range(self.size)]
        return all(each == named[0] for each in named)

    def named_shapes(self, rank: int) -> list[tuple[str, tuple[int, ...] | None]]:
        """Name and shape of each of a rank's parameters, without the shape of those that are shared out."""
        parameters = self.ranks[rank].model.parameters
        return [(each.name, None if each.shared_out else tuple(each.shape)) for each in parameters]

    def calls(self, *names: str, phase: str = "") -> int:
        """How many of these collectives the script called itself in its steps, on all ranks together."""
        found = 0
        for rank in self.ranks:
            for step in rank.steps.values():
                for key, calls in step.collectives.items():
                    name, where = key.split()
                    found += calls.count if name in names and phase in ("", where) else 0
        return found

    @cached_property
    def is_pipeline(self) -> bool:
        """Whether the ranks have different layers of one model, and send each other what these compute."""
        names = [{name for name, _ in self.named_shapes(rank)} for rank in range(self.size)]
        apart = sum(len(each) for each in names) == len(set.union(*names))
        return apart and self.calls("send", "recv", "isend", "irecv", "batch_isend_irecv") > 0

    @cached_property
    def is_data_parallel(self) -> bool:
        """Whether every rank certainly trains the whole model on data of its own.

        A mesh of several dimensions, tensor parallelism and pipelines rightly give several ranks the same samples, or
        ranks other weights, and nothing outside the script can tell what belongs together there.
        """
        models = [rank.model for rank in self.ranks]
        if not self.trains or not self.same_model:
            return False
        if all(model.ddp or model.around_ddp for model in models):
            wrapped = [rank.first(DdpRecord) for rank in self.ranks]
            return all(each is not None and each.group == self.size for each in wrapped)
        if any(len(mesh) > 1 for model in models for mesh in model.meshes):
            return False
        if all(model.fsdp for model in models):
            return True
        if any(each.shared_out for model in models for each in model.parameters):
            return False
        messages = self.calls("send", "recv", "isend", "irecv", "batch_isend_irecv", "all_to_all", "all_to_all_single")
        inside = self.calls(
            "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", phase="forward"
        )
        return not messages and not inside


def read_records(path: Path, most: int | None = None) -> list[Any]:
    """Read the records of one process, or the first `most`; an unfinished last line is left out."""
    records: list[Any] = []
    if not path.exists():
        return records
    with open(path) as file:
        for line in file:
            if len(records) == most or not line.endswith("\n"):
                break
            records.append(parse(json.loads(line)))
    return records
