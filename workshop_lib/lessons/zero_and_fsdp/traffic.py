"""What PyTorch's collectives are handed, counted where all libraries meet: DDP, FSDP and DeepSpeed call the same
operators in the end."""

from collections import defaultdict

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from workshop_lib.training.memory import tensors

NAMES = {
    "allreduce_": "allreduce",
    "allreduce_coalesced_": "allreduce",
    "_allgather_base_": "allgather",
    "allgather_": "allgather",
    "allgather_into_tensor_coalesced_": "allgather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "reduce_": "reduce",
    "broadcast_": "broadcast",
    # what tensor parallelism calls
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter_tensor": "reduce-scatter",
}


class Traffic(TorchDispatchMode):
    """Counts the collectives that this thread calls while a `with` lasts.

    calls and handed_bytes are by name. The bytes of a call are those of the whole array: what goes into an allreduce,
    a reduce or a reduce-scatter, and what comes out of an allgather. What a rank then sends depends on the algorithm;
    a ring sends (p - 1) / p of them, and twice that for an allreduce.
    """

    def __init__(self):
        super().__init__()
        self.calls: dict[str, int] = defaultdict(int)
        self.handed_bytes: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its own operators come next, with plain tensors
        output = func(*args, **(kwargs or {}))
        name = NAMES.get(func._opname) if getattr(func, "namespace", "") in ("c10d", "_c10d_functional") else None
        if name:
            self.calls[name] += 1
            self.handed_bytes[name] += max(tensor.nbytes for tensor in tensors([args, output]))
        return output
