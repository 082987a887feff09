"""The work of training a transformer on a mesh of ranks, copies x data x tensor x pipeline: operations, bytes, memory.

12_thousand_ranks compares meshes with it. The work comes from a dry run (thousand_ranks/step_report.py) or, for models
whose code isn't at hand, from the formulas in `work`. forecast.py turns it into seconds. Nothing in this file was
measured.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from workshop_lib.forecast.forecast import Collective, Mesh, StepTime, step_time
from workshop_lib.machine.catalogue import Machine

# What the backward pass computes again in each layer: nothing, all but matrix products and attention, or everything.
RECOMPUTE = ("none", "selective", "full")
# Data ranks per copy of the weights in HSDP: eight nodes of eight.
GROUP = 64
# Bytes per parameter with Adam: bf16 weights and fp32 gradients, and the optimizer in fp32, as in Megatron-LM. FSDP
# keeps all its shards in fp32.
CAST_BYTES = 2 + 4
ADAM_BYTES = 12
FSDP_BYTES = 16


@dataclass(frozen=True)
class Gpt:
    """The shape of a decoder-only transformer, and the length of its sequences in tokens.

    tied: whether its last layer multiplies with the weights of its embedding. If not, the embedding's are only looked
    up.
    """

    layers: int
    width: int
    parameters: float
    tokens: int
    vocabulary: int = 0
    tied: bool = True

    @property
    def flops(self) -> float:
        """Floating-point operations to train on one sequence: 6 per weight that multiplies and token, and attention's.

        Attention's count as those of whole matrices even if it is causal (Narayanan et al. 2021, arXiv:2104.04473, eq.
        3 without recomputing).
        """
        looked_up = 0 if self.tied else self.vocabulary * self.width
        return 6 * (self.parameters - looked_up) * self.tokens + 12 * self.layers * self.width * self.tokens**2


@dataclass(frozen=True)
class Plan:
    """How a model is trained.

    micro_batch: sequences in each micro-batch of a data rank. micro_batches: micro-batches per step. sharding: what is
    sharded over the data ranks: "none" (DDP), the optimizer's "states" (ZeRO-1), or everything, "full" (FSDP, ZeRO-3).
    The data ranks communicate once per step in the first two cases, and in every micro-batch in the last one.
    recompute: one of RECOMPUTE. interleaved: stages per pipeline rank.
    """

    micro_batch: int = 1
    micro_batches: int = 1
    sharding: str = "full"
    recompute: str = "none"
    interleaved: int = 1


@dataclass
class Work:
    """What one rank does in a step: operations, the most bytes it holds, and collectives."""

    flops: float
    peak_bytes: float
    collectives: list[Collective]


@dataclass(frozen=True)
class MeshForecast(StepTime):
    """The forecast for a mesh. mfu: the model's operations as a share of the devices' peak in bf16.

    hideable_s: the seconds of the messages over the data dimension that may travel while a rank is busy. exposed_s: the
    seconds of those that can't: FSDP's first and last one, and all of them without FSDP.
    """

    mfu: float
    peak_bytes: float
    hideable_s: float
    exposed_s: float

    def by(self, step: Callable[[float, float, float, float, float], float]) -> "MeshForecast":
        """The forecast whose step takes the seconds that this function of its parts returns.

        The idle time of a pipeline counts as waiting for tensor messages, since nothing is hidden behind it.
        """
        waited_s = self.tensor_s + self.bubble_s
        step_s = step(self.compute_s, waited_s, self.hideable_s, self.exposed_s, self.late_s)
        return replace(self, step_s=step_s, mfu=self.mfu * self.step_s / step_s)

    def row(self, *names: str) -> dict[str, float]:
        """These columns of a table, and the memory in GB."""
        return {name: getattr(self, name) for name in names} | {"peak_GB": self.peak_bytes / 1e9}


def work(model: Gpt, mesh: Mesh, plan: Plan) -> Work:
    """Estimate what one rank computes, holds and sends in a step, with 2 bytes per value and 4 per summed gradient.

    Each layer has two allreduces of its activations in forward and two in backward, and two more if all of forward is
    computed again (arXiv:2104.04473, section 3.2; PyTorch leaves out the last of these). The messages of a pipeline are
    left out, because they are small.
    """
    m = plan.micro_batches
    layers = model.layers / mesh.pipeline
    share = model.parameters / (mesh.tensor * mesh.pipeline)
    passes = 4 / 3 if plan.recompute == "full" else 1
    flops = m * plan.micro_batch * model.flops * passes / (mesh.tensor * mesh.pipeline)
    times = m if plan.sharding == "full" else 1
    units = max(1, round(layers)) * times
    found = []
    if mesh.tensor > 1:
        calls = (6 if plan.recompute == "full" else 4) * layers * m
        activations = 2 * plan.micro_batch * model.tokens * model.width
        found.append(Collective("allreduce", "tensor", mesh.tensor, round(calls), calls * activations))
    if mesh.data > 1 and plan.sharding == "none":
        found.append(Collective("allreduce", "data", mesh.data, 1, 4 * share))
    elif mesh.data > 1:
        gathers = 2 if plan.sharding == "full" else 1
        found.append(Collective("allgather", "data", mesh.data, units * gathers, times * gathers * 2 * share))
        found.append(Collective("reduce-scatter", "data", mesh.data, units, times * 4 * share))
    if mesh.copies > 1:
        found.append(Collective("allreduce", "copies", mesh.copies, units, times * 4 * share / mesh.data))
    return Work(flops, memory_bytes(model, mesh, plan), found)


def memory_bytes(model: Gpt, mesh: Mesh, plan: Plan) -> float:
    """Bytes on the fullest rank, in the pipeline's first stage: states, gathered layers, activations and logits.

    With FlashAttention and without dropout, a layer keeps sbh (8 + 24 / t) bytes. It keeps 4 sbh less without the
    outputs of its norms and 8 sbh / t less without that of GELU, and 2 sbh if backward computes all of it again
    (Korthikanti et al. 2022, arXiv:2205.05198, section 4). The first stage keeps as many micro-batches at once as there
    are stages.
    """
    share = model.parameters / (mesh.tensor * mesh.pipeline)
    states = {
        "none": share * (CAST_BYTES + ADAM_BYTES),
        "states": share * (CAST_BYTES + ADAM_BYTES / mesh.data),
        "full": share * FSDP_BYTES / mesh.data,
    }[plan.sharding]
    gathered = 2 * 2 * share * mesh.pipeline / model.layers if plan.sharding == "full" else 0
    values = model.tokens * plan.micro_batch * model.width
    one_layer = values * (8 + 24 / mesh.tensor)
    kept = {"none": one_layer, "selective": values * (4 + 16 / mesh.tensor), "full": 2 * values}[plan.recompute]
    alive = model.layers / mesh.pipeline * min(mesh.pipeline, plan.micro_batches)
    activations = alive * kept
    if plan.recompute != "none":
        activations += one_layer - kept  # the backward pass of a layer has all of it
    logits = 6 * model.tokens * plan.micro_batch * model.vocabulary / mesh.tensor
    return states + gathered + activations + logits


def with_layers(few: Work, more: Work, layers: float) -> Work:
    """Extrapolate the work of a deep model from dry runs of two shallower ones. All layers must cost the same.

    layers: how many times the difference between `few` and `more` is added to `few`; 29 gets from runs of 3 and 4
    layers to 32 layers. With fewer than three layers, FSDP's peak doesn't grow evenly yet.
    """

    def grown(one: float, other: float) -> float:
        return one + layers * (other - one)

    collectives = [
        Collective(a.kind, a.over, a.ranks, round(grown(a.calls, b.calls)), grown(a.handed_bytes, b.handed_bytes))
        for a, b in zip(few.collectives, more.collectives, strict=True)
    ]
    return Work(grown(few.flops, more.flops), grown(few.peak_bytes, more.peak_bytes), collectives)


def forecast(
    done: Work, model_flops: float, machine: Machine, mesh: Mesh, plan: Plan, share: float | None = None
) -> MeshForecast:
    """Forecast the step of a rank that does this work, in a mesh on this machine.

    model_flops: the model's operations in the whole step, on all ranks. share: the share of its peak that one device's
    arithmetic reaches, by default the machine's number. Without FSDP, the data ranks' messages come after backward. The
    stages of a pipeline are idle for (p - 1) / (v m) of the time that they compute (arXiv:2104.04473, section 2.2).
    """
    peak = machine.peak_flops_per_s["bf16"]
    share = machine.utilization.get("transformer", 0.4) if share is None else share
    bubble_share = (mesh.pipeline - 1) / (plan.interleaved * plan.micro_batches)
    fully = plan.sharding == "full"
    overlap = "everything" if fully else "nothing"
    step = step_time(machine, mesh, done.flops / (peak * share), done.collectives, overlap, bubble_share)
    mfu = model_flops / (mesh.ranks * step.step_s * peak)
    calls = sum(each.calls for each in done.collectives if each.over != "tensor")
    hideable_s, exposed_s = (step.data_s, 2 * step.data_s / max(calls, 2)) if fully else (0.0, step.data_s)
    return MeshForecast(**vars(step), mfu=mfu, peak_bytes=done.peak_bytes, hideable_s=hideable_s, exposed_s=exposed_s)


def of_formulas(model: Gpt, machine: Machine, mesh: Mesh, plan: Plan, share: float | None = None) -> MeshForecast:
    """Forecast the step of a model whose work is estimated by the formulas in `work`."""
    sequences = mesh.copies * mesh.data * plan.micro_batch * plan.micro_batches
    return forecast(work(model, mesh, plan), sequences * model.flops, machine, mesh, plan, share)


def plans(model: Gpt, ranks: int, global_batch: int) -> Iterator[tuple[Mesh, Plan]]:
    """The meshes and plans that are worth a look: they divide the ranks, the layers and the global batch evenly.

    Pipelines shard the optimizer's states only. The others shard everything, over all data ranks or in groups of GROUP.
    """
    sizes = (1, 2, 4, 8, 16, 32)
    for tensor, pipeline, copied in itertools.product(sizes, sizes, (False, True)):
        data, left = divmod(ranks, tensor * pipeline)
        if left or data < 1 or model.layers % pipeline or global_batch % data:
            continue
        group = GROUP if copied else data
        if copied and (pipeline > 1 or data <= group or data % group):
            continue
        mesh = Mesh(group, tensor, pipeline, data // group)
        for micro_batch, recompute in itertools.product((1, 2, 4, 8), RECOMPUTE):
            m, left = divmod(global_batch // data, micro_batch)
            if m and not left:
                yield mesh, Plan(micro_batch, m, "full" if pipeline == 1 else "states", recompute)


def forecasts(model: Gpt, machine: Machine, ranks: int, global_batch: int) -> list[dict[str, Any]]:
    """The forecast of each mesh and plan that is worth a look, one row each."""
    rows = []
    for mesh, plan in plans(model, ranks, global_batch):
        made = of_formulas(model, machine, mesh, plan)
        chosen = {name: getattr(plan, name) for name in ("micro_batches", "micro_batch", "recompute")}
        rows.append(vars(mesh) | chosen | made.row("step_s", "mfu"))
    return rows
