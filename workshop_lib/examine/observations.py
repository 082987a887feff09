"""What the ranks of one run did, as their recorders wrote it down."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from workshop_lib.ranks.call.messages import Frame

Record = dict[str, Any]


@dataclass
class RankLog:
    """The records of one rank, in the order in which it wrote them."""

    records: list[Record] = field(default_factory=list)
    workers: list[list[Record]] = field(default_factory=list)  # what each of its loading workers did first

    def of_kind(self, *kinds: str) -> list[Record]:
        return [record for record in self.records if record["kind"] in kinds]

    def first(self, kind: str) -> Record:
        """The first record of this kind; empty if there is none."""
        return next((record for record in self.records if record["kind"] == kind), {})

    @property
    def start(self) -> Record:
        return self.first("start")

    @cached_property
    def steps(self) -> dict[int, Record]:
        return {record["step"]: record for record in self.of_kind("step")}

    @property
    def model(self) -> Record:
        """The model that is trained; of several, the first one that is wrapped, or else the first one."""
        wrapped = [each for each in self.of_kind("model") if each["ddp"] or each["fsdp"]]
        return wrapped[0] if wrapped else self.first("model")

    def forwards(self, step: int) -> list[Record]:
        """The trained model's forward passes in a step."""
        return [each for each in self.steps[step]["forwards"] if each["model"] == self.model["model"]]

    def is_by_closure(self, step: int) -> bool:
        """Whether the optimizer itself calls the model, as L-BFGS does, several times in a step."""
        return any(forward.get("closure") for forward in self.forwards(step))

    def samples(self, step: int) -> list[int]:
        return [digest for forward in self.forwards(step) for digest in forward.get("samples", [])]

    @cached_property
    def orders(self) -> dict[tuple[int, int], list[int]]:
        """The indices of samples in the order in which they were loaded, by loader and epoch."""
        return self._by_epoch("indices")

    @cached_property
    def labels(self) -> dict[tuple[int, int], list[list[int]]]:
        """The labels of the first samples, in the order in which they were loaded, by loader and epoch."""
        return self._by_epoch("labels")

    def _by_epoch(self, kind: str) -> dict[tuple[int, int], list]:
        values: dict[tuple[int, int], list] = {}
        for record in self.of_kind(kind):
            values.setdefault((record["loader"], record["epoch"]), []).extend(record["values"])
        return values

    @cached_property
    def loaders(self) -> dict[int, list[Record]]:
        """What each loader was like at the start of each of its epochs."""
        loaders: dict[int, list[Record]] = {}
        for record in self.of_kind("epoch"):
            loaders.setdefault(record["loader"], []).append(record)
        return loaders

    def passes(self, loader: int, whole: bool = False) -> list[Record]:
        """The epochs of a loader that the script trained on, without peeks at a batch and evaluations.

        whole: leave out those that were cut off.
        """
        epochs = self.loaders[loader]
        next_steps = [each["step"] for each in epochs[1:]] + [max(self.steps, default=0)]
        passes = [each for each, next_step in zip(epochs, next_steps, strict=True) if next_step > each["step"]]
        return [each for each in passes if not whole or self._is_whole(each)]

    def _is_whole(self, epoch: Record) -> bool:
        order = self.orders.get((epoch["loader"], epoch["epoch"]), [])
        return bool(epoch["batches"] and len(order) > (epoch["batches"] - 1) * (epoch["batch"] or 1))

    @cached_property
    def training_loaders(self) -> set[int]:
        forwards = [forward for step in self.steps for forward in self.forwards(step)]
        return {forward["loader"] for forward in forwards if forward["loader"] is not None}

    @cached_property
    def evaluations(self) -> list[Record]:
        """Evaluations of the trained model."""
        number = self.model.get("model")
        found = self.of_kind("evaluation")
        return [each for each in found if any(forward["model"] == number for forward in each["forwards"])]


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
        taken = [{step for step, each in rank.steps.items() if _is_whole(each)} for rank in self.ranks if rank.model]
        both = set.intersection(*taken) if len(taken) == self.size else set()
        return sorted(step for step in both if all(rank.forwards(step) for rank in self.ranks))

    @property
    def trains(self) -> bool:
        return bool(self.common_steps) and all(rank.model for rank in self.ranks)

    @property
    def joined(self) -> bool:
        """Whether all ranks are in one process group."""
        return all(rank.first("group").get("size") == self.size for rank in self.ranks)

    @cached_property
    def same_model(self) -> bool:
        """Whether the ranks' models have the same parameters."""
        named = [self.named_shapes(rank) for rank in range(self.size)]
        return all(each == named[0] for each in named)

    def named_shapes(self, rank: int) -> list[tuple[str, tuple[int, ...] | None]]:
        """Name and shape of each of a rank's parameters, without the shape of those that are shared out."""
        parameters = self.ranks[rank].model["parameters"]
        return [(name, None if shared_out else tuple(shape)) for name, shape, _, shared_out in parameters]

    def calls(self, *names: str, phase: str = "") -> int:
        """How many of these collectives the script called itself in its steps, on all ranks together."""
        found = 0
        for rank in self.ranks:
            for step in rank.steps.values():
                for key, (count, *_) in step["collectives"].items():
                    name, where = key.split()
                    found += count if name in names and phase in ("", where) else 0
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
        if all(model["ddp"] or model["around_ddp"] for model in models):
            return all(rank.first("ddp").get("group") == self.size for rank in self.ranks)
        if any(len(mesh) > 1 for model in models for mesh in model["meshes"]):
            return False
        if all(model["fsdp"] for model in models):
            return True
        if any(shared_out for model in models for *_, shared_out in model["parameters"]):
            return False
        messages = self.calls("send", "recv", "isend", "irecv", "batch_isend_irecv", "all_to_all", "all_to_all_single")
        inside = self.calls(
            "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", phase="forward"
        )
        return not messages and not inside


def _is_whole(step: Record) -> bool:
    return "optimizers" in step or "skipped" in step


def read_rank(path: Path, most: int | None = None) -> RankLog:
    """Read the records of one rank, or the first `most`; an unfinished last line is left out."""
    rank = RankLog()
    if not path.exists():
        return rank
    with open(path) as file:
        for line in file:
            if len(rank.records) == most or not line.endswith("\n"):
                break
            rank.records.append(json.loads(line))
    return rank
