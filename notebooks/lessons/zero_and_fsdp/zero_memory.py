"""How much GPU memory training takes: model states by ZeRO stage, activations, and what fits.

06_zero_and_fsdp draws the states, and its calculator uses the rest. These are formulas, not measurements; `live_bytes`
in by_hand.py measures. All sizes are in bytes.
"""

from dataclasses import dataclass

from workshop_lib.errors import InputError
from workshop_lib.quantities import whole

GIB = 2**30

# What each stage divides among the ranks (Rajbhandari et al. 2020, arXiv:1910.02054, section 5). Offloading
# moves the same states to the host (arXiv:2101.06840, section 3; stage 3: arXiv:2104.07857).
SHARDED: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("optimizer",),
    2: ("optimizer", "gradients"),
    3: ("optimizer", "gradients", "parameters"),
}

# Bytes per parameter. Training in bf16 updates an fp32 copy of the parameters, which counts as optimizer state
# (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1). Adam adds momentum and variance, SGD momentum. Megatron-LM
# also adds up gradients in fp32, 18 bytes (docs.nvidia.com/megatron-core, distributed optimizer).
RECIPES = {
    "fp32, Adam": {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8},
    "bf16, Adam": {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 12},
    "bf16, Adam, fp32 gradients": {"parameter_bytes": 2, "gradient_bytes": 4, "optimizer_bytes": 12},
    "fp32, SGD with momentum": {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 4},
    "bf16, SGD with momentum": {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 8},
}

# When vendors say "GB" of GPU memory, they mean GiB: nvidia-smi shows 81,920 MiB for an A100 of 80 GB. The driver keeps
# some of it, so PyTorch's total_memory is 0 to 2 % less (15.78, 31.75, 79.2, 139.8, 63.98 GiB of 16, 32, 80, 141, 64).
# B200: 1,440 GB in the eight of a DGX (NVIDIA's data sheet). MI300X: AMD's data sheet.
GPUS = {
    "V100, 16 GB": 16 * GIB,
    "V100, 32 GB": 32 * GIB,
    "RTX 4090, 24 GB": 24 * GIB,
    "A100, 40 GB": 40 * GIB,
    "A100, 80 GB": 80 * GIB,
    "H100, 80 GB": 80 * GIB,
    "H200, 141 GB": 141 * GIB,
    "B200, 180 GB": 180 * GIB,
    "MI300X, 192 GB": 192 * GIB,
    "MI250X, one GCD of 64 GB": 64 * GIB,
    "Max 1550, one tile of 64 GB": 64 * GIB,
}


def state_bytes(parameters, ranks, stage, *, parameter_bytes=2, gradient_bytes=2, optimizer_bytes=12) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer states that each of `ranks` keeps at a ZeRO stage.

    In the paper, a rank keeps (2 + 2 + K) Ψ bytes, with K = 12 for Adam, and a stage divides some of these terms by the
    number of ranks (arXiv:1910.02054, sections 3.1 and 5, figure 1). Shares are equal here and rounded up to whole
    parameters. (PyTorch's ZeroRedundancyOptimizer deals out whole tensors, so its shares differ.) Communication buckets
    and the layer that stage 3 gathers come on top. Raises InputError if stage is not 0 to 3, or if parameters or ranks
    are not whole numbers from 1 to 10^15.
    """
    parameters = whole("parameters", parameters)
    ranks = whole("ranks", ranks)
    if stage not in SHARDED:
        raise InputError(f"stage is {stage!r}: ZeRO has the stages 0 (nothing divided), 1, 2 and 3")
    sizes = {"parameters": parameter_bytes, "gradients": gradient_bytes, "optimizer": optimizer_bytes}
    share = -(-parameters // ranks)
    return {kind: size * (share if kind in SHARDED[stage] else parameters) for kind, size in sizes.items()}


@dataclass(frozen=True)
class Transformer:
    """The shape of a GPT."""

    layers: int
    hidden: int
    vocabulary: int


def activation_bytes(model: Transformer, sequence, batch, *, value_bytes=2, checkpointing=False) -> int:
    """Bytes of activations on a GPU for `batch` sequences of `sequence` tokens, with FlashAttention.

    A layer keeps 34 sbh bytes in 16 bit (Korthikanti et al. 2022, arXiv:2205.05198, eq. 1 without the attention
    matrices, which FlashAttention never stores): 16 values and 2 bytes of dropout masks for each of its s·b·h elements.
    value_bytes: 2, or 4 for fp32. With checkpointing, each layer keeps only its input, 2 sbh bytes in 16 bit (section
    5), but the layer that is being recomputed keeps everything. Outside the layers, 5 sbh bytes and 4 sbV bytes for the
    logits in fp32 come on top (section 4.3), and they matter beside checkpoints. Raises InputError if sequence or batch
    is not a whole number from 1 to 10^15.
    """
    tokens = whole("sequence", sequence) * whole("batch", batch)
    one = tokens * model.hidden * (16 * value_bytes + 2)
    outside = tokens * (model.hidden * (2 * value_bytes + 1) + 4 * model.vocabulary)
    if checkpointing:
        return model.layers * tokens * model.hidden * value_bytes + one + outside
    return model.layers * one + outside


@dataclass(frozen=True)
class StageMemory:
    """What a rank holds at a stage: bytes on its GPU by kind, bytes in host memory, and whether that fits."""

    stage: int
    gpu_bytes: dict[str, int]
    host_bytes: int
    fits: bool

    @property
    def total_gpu_bytes(self) -> int:
        return sum(self.gpu_bytes.values())


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of each of the four stages, and what fits.

    first_fit: the first stage that fits, or None. ranks_needed: if none fits, the fewest ranks at which stage 3 would.
    It is None with offloading, and if no number of ranks is enough because the activations, which no stage divides,
    leave no room.
    """

    ranks: int
    gpu_bytes: int
    usable_bytes: int
    stages: tuple[StageMemory, ...]
    first_fit: int | None
    ranks_needed: int | None


def plan(parameters, ranks, gpu_bytes, recipe, *, activations=0, offload=False, reserve=0.1) -> MemoryPlan:
    """Memory of each ZeRO stage on `ranks` GPUs of `gpu_bytes`, with a recipe such as RECIPES["bf16, Adam"].

    activations: bytes per GPU. offload: whether each stage moves to the host what it divides. reserve: the share of the
    GPU that is kept free for fragmentation, communication buffers, the layer that stage 3 gathers, and the framework.
    It is a rule of thumb, which a run has to confirm (Rajbhandari et al. saw a run out of memory with over 30 % free,
    section 3.2). Raises InputError like `state_bytes`.
    """
    usable = int(gpu_bytes * (1 - reserve))
    stages = []
    for stage in SHARDED:
        states = state_bytes(parameters, ranks, stage, **recipe)
        moved = SHARDED[stage] if offload else ()
        host = sum(states[kind] for kind in moved)
        on_gpu = states | dict.fromkeys(moved, 0) | {"activations": activations}
        stages.append(StageMemory(stage, on_gpu, host, sum(on_gpu.values()) <= usable))
    first = next((memory.stage for memory in stages if memory.fits), None)
    # The most parameters per rank whose states fit beside the activations.
    share = (usable - activations) // sum(recipe.values())
    needed = -(-int(parameters) // share) if first is None and not offload and share > 0 else None
    return MemoryPlan(int(ranks), gpu_bytes, usable, tuple(stages), first, needed)
