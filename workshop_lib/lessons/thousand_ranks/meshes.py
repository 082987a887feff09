"""Forecast the seconds and memory of a step on a mesh of ranks, data x tensor x pipeline, from bytes and arithmetic.

12_thousand_ranks compares meshes with it. The bytes and the arithmetic come from a dry run (step_report.py) or, for
models whose code isn't at hand, from the formulas in `work`. The costs of messages come from machine/catalogue.py.
As in 08c, nothing in this file was measured.
"""

import itertools
from dataclasses import dataclass

from workshop_lib.errors import InputError
from workshop_lib.lessons.forecasting.forecast import LATENESS
from workshop_lib.lessons.thousand_ranks.step_report import Collective, Report
from workshop_lib.machine import catalogue
from workshop_lib.machine.catalogue import Machine
from workshop_lib.machine.cost_model import slowest_of
from workshop_lib.quantities import whole

# What is sharded over the data ranks: nothing (DDP), the optimizer's states (ZeRO-1), or everything (FSDP, ZeRO-3).
# The data ranks communicate once per step in the first two cases, and in every micro-batch in the last one.
SHARDING = ("none", "states", "full")
# What the backward pass computes again in each layer: nothing, all but matrix products and attention, or everything.
RECOMPUTE = ("none", "selective", "full")
# How many times as fast as in bf16 the linear layers run in each precision. FP8's peak is twice that of bf16. But
# torchtitan trains Llama 3.1 8B on 8 H100 only 1.28 times as fast (benchmarks/llama3_h100_202412_torchtitan.md, table
# 1). The linear layers of its blocks, which alone are in FP8, have 69 % of the operations: they run 1.47 times as fast.
LINEAR_SPEED = {"bf16": 1.0, "fp8": 1.47}
# Bytes per parameter with Adam: bf16 weights and fp32 gradients, and the optimizer in fp32, as in Megatron-LM. FSDP
# keeps all its shards in fp32.
CAST_BYTES = 2 + 4
ADAM_BYTES = 12
FSDP_BYTES = 16


@dataclass(frozen=True)
class Mesh:
    """The number of ranks in each dimension of a mesh.

    The ranks of a tensor group are neighbors, those of a data group are a whole tensor group apart, and the stages of a
    pipeline are furthest apart (the order of Narayanan et al. 2021, arXiv:2104.04473).
    """

    data: int
    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self):
        for name in ("data", "tensor", "pipeline"):
            whole(name, getattr(self, name))

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        shape = f"{self.data}x{self.tensor}"
        return f"{shape}x{self.pipeline}" if self.pipeline > 1 else shape


@dataclass(frozen=True)
class Gpt:
    """The shape of a decoder-only transformer, and the length of its sequences in tokens."""

    layers: int
    width: int
    parameters: float
    tokens: int
    vocabulary: int = 0

    @property
    def flops(self) -> float:
        """Floating-point operations to train on one sequence: 6 per parameter and token, plus the attention matrices.

        These count as whole matrices even if attention is causal (Narayanan et al. 2021, arXiv:2104.04473, eq. 3
        without recomputing).
        """
        return 6 * self.parameters * self.tokens + 12 * self.layers * self.width * self.tokens**2


@dataclass(frozen=True)
class Plan:
    """How a model is trained.

    micro_batch: sequences in each micro-batch of a data rank. micro_batches: micro-batches per step. sharding: one of
    SHARDING. recompute: one of RECOMPUTE. interleaved: stages per pipeline rank. precision: one of LINEAR_SPEED.
    """

    micro_batch: int = 1
    micro_batches: int = 1
    sharding: str = "full"
    recompute: str = "none"
    interleaved: int = 1
    precision: str = "bf16"

    def __post_init__(self):
        for name, choices in (("sharding", SHARDING), ("recompute", RECOMPUTE), ("precision", LINEAR_SPEED)):
            chosen = getattr(self, name)
            if chosen not in choices:
                raise InputError(f"{name} {chosen!r} is not known: choose one of {', '.join(choices)}")


@dataclass(frozen=True)
class Forecast:
    """The seconds of a step, and its parts. mfu: the model's operations as a share of the devices' peak in bf16,
    also for a plan in FP8, since only a part of the operations is in FP8.
    """

    step_s: float
    compute_s: float
    tensor_s: float
    data_s: float  # all messages over the data dimension, even those that computing hides
    bubble_s: float
    late_s: float
    mfu: float
    peak_bytes: float


def work(model: Gpt, mesh: Mesh, plan: Plan) -> Report:
    """Estimate what one rank computes, holds and sends in a step, with 2 bytes per value and 4 per summed gradient.

    Each layer has two allreduces of its activations in forward and two in backward, and two more if all of forward is
    computed again (arXiv:2104.04473, section 3.2; PyTorch leaves out the last of these). The messages of a pipeline are
    left out, because they are small. Operations in FP8 count as the operations in bf16 that take as long.
    """
    m = plan.micro_batches
    layers = model.layers / mesh.pipeline
    share = model.parameters / (mesh.tensor * mesh.pipeline)
    sequences = m * plan.micro_batch
    in_fp8 = 6 * model.tokens * (model.parameters - 2 * model.vocabulary * model.width)
    as_in_bf16 = model.flops - in_fp8 * (1 - 1 / LINEAR_SPEED[plan.precision])
    passes = 4 / 3 if plan.recompute == "full" else 1
    flops = sequences * as_in_bf16 * passes / (mesh.tensor * mesh.pipeline)
    found = []
    if mesh.tensor > 1:
        calls = (6 if plan.recompute == "full" else 4) * layers * m
        activations = 2 * plan.micro_batch * model.tokens * model.width
        found.append(Collective("allreduce", "tensor", mesh.tensor, round(calls), calls * activations))
    if mesh.data > 1:
        times = m if plan.sharding == "full" else 1
        if plan.sharding == "none":
            found.append(Collective("allreduce", "data", mesh.data, 1, 4 * share))
        else:
            gathers = times * (2 if plan.sharding == "full" else 1)
            units = max(1, round(layers))
            found.append(Collective("allgather", "data", mesh.data, units * gathers, gathers * 2 * share))
            found.append(Collective("reduce-scatter", "data", mesh.data, units * times, times * 4 * share))
    return Report(0, mesh.ranks, [], {}, memory_bytes(model, mesh, plan), flops, found)


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


def with_layers(few: Report, more: Report, layers: float) -> Report:
    """Extrapolate the work of a deep model from dry runs of two shallower ones. All layers must cost the same.

    layers: how many times the difference between `few` and `more` is added to `few`; 15 gets from runs of 2 and 4
    layers to 32 layers.
    """

    def grown(one: float, other: float) -> float:
        return one + layers * (other - one)

    pairs = zip(few.collectives, more.collectives, strict=True)
    collectives = [
        Collective(a.kind, a.over, a.ranks, round(grown(a.calls, b.calls)), grown(a.handed_bytes, b.handed_bytes))
        for a, b in pairs
    ]
    peak_bytes = grown(few.peak_bytes, more.peak_bytes)
    return Report(few.rank, few.world_size, [], {}, peak_bytes, grown(few.flops, more.flops), collectives)


def collective_s(machine: Machine, each: Collective, stride: int) -> float:
    """Seconds of all calls of one collective, as rings through ranks that are `stride` apart."""
    one = each.handed_bytes / max(1, each.calls)
    ring_s = machine.ring_s(each.ranks, one, stride)
    return each.calls * ring_s * (1.0 if each.kind == "allreduce" else 0.5)


def forecast(
    done: Report, model_flops: float, machine: Machine, mesh: Mesh, plan: Plan, share: float | None = None
) -> Forecast:
    """Forecast the step of a rank that does this work, in a mesh on this machine.

    model_flops: the model's operations in the whole step, on all ranks. share: the share of its peak that one device's
    arithmetic reaches, by default the machine's number. Tensor parallelism waits for its messages. FSDP gathers and
    reduces while it computes, except for the first and the last layer. Without FSDP, the data ranks' messages come
    after backward. The stages of a pipeline are idle for (p - 1) / (v m) of the time that they compute
    (arXiv:2104.04473, section 2.2). forecasting/forecast.py says how late the slowest rank is.
    """
    peak = machine.peak_flops_per_s["bf16"]
    share = machine.utilization.get("transformer", 0.4) if share is None else share
    strides = {"tensor": 1, "data": mesh.tensor}
    seconds = dict.fromkeys(strides, 0.0)
    for each in done.collectives:
        over = each.over if each.over in strides else "data"
        seconds[over] += collective_s(machine, each, strides[over])
    compute_s = done.flops / (peak * share)
    tensor_s = seconds["tensor"]
    data_s = seconds["data"]
    busy_s = compute_s + tensor_s
    bubble_s = busy_s * (mesh.pipeline - 1) / (plan.interleaved * plan.micro_batches)
    exposed_s = data_s
    if plan.sharding == "full":
        calls = sum(each.calls for each in done.collectives if each.over not in ("tensor",))
        exposed_s = max(data_s - busy_s, 0.0) + 2 * data_s / max(calls, 2)
    late_s = LATENESS.typical * slowest_of(mesh.ranks) * compute_s
    waiting_s = tensor_s + bubble_s + exposed_s
    step_s = compute_s + max(waiting_s, late_s)
    mfu = model_flops / (mesh.ranks * step_s * peak)
    return Forecast(step_s, compute_s, tensor_s, data_s, bubble_s, late_s, mfu, done.peak_bytes)


def of_formulas(model: Gpt, machine: Machine, mesh: Mesh, plan: Plan, share: float | None = None) -> Forecast:
    """Forecast the step of a model whose work is estimated by the formulas in `work`.

    Raises InputError if the plan is in FP8 and the machine can't multiply in FP8.
    """
    if plan.precision == "fp8" and not machine.fp8:
        others = ", ".join(name for name, each in catalogue.machines().items() if each.fp8)
        raise InputError(f"{machine.device} has no FP8: choose one of {others}, or bf16.")
    sequences = mesh.data * plan.micro_batch * plan.micro_batches
    return forecast(work(model, mesh, plan), sequences * model.flops, machine, mesh, plan, share)


def plans(model: Gpt, ranks: int, global_batch: int, precision: str = "bf16") -> list[tuple[Mesh, Plan]]:
    """The meshes and plans that are worth a look: they divide the ranks, the layers and the global batch evenly."""
    found = []
    for tensor, pipeline in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32)):
        data, left = divmod(ranks, tensor * pipeline)
        if left or data < 1 or model.layers % pipeline or global_batch % data:
            continue
        sharding = "full" if pipeline == 1 else "states"
        for micro_batch, recompute in itertools.product((1, 2, 4, 8), RECOMPUTE):
            m, left = divmod(global_batch // data, micro_batch)
            if not left and m:
                plan = Plan(micro_batch, m, sharding, recompute, precision=precision)
                found.append((Mesh(data, tensor, pipeline), plan))
    return found
