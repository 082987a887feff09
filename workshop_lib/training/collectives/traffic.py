"""Count PyTorch's collectives and their bytes, for 06_zero_and_fsdp and 06b_deepspeed.

All libraries can be counted in the same way, because DDP, FSDP and DeepSpeed call the same operators in the end.
"""

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
    # operators that tensor parallelism calls
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter_tensor": "reduce-scatter",
}


class Traffic(TorchDispatchMode):
    """Counts the collectives that this thread calls inside a `with` block.

    calls, handed_bytes: by the collective's name. The bytes of a call are those of the whole array: what goes into an
    allreduce, a reduce or a reduce-scatter, and what comes out of an allgather.
    sharded_bytes_sent: what this rank sends in a ring for allgathers and reduce-scatters, the array without one part.
    """

    def __init__(self):
        super().__init__()
        self.calls: dict[str, int] = defaultdict(int)
        self.handed_bytes: dict[str, int] = defaultdict(int)
        self.sharded_bytes_sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # DTensor calls operators on plain tensors next, and these are counted
        output = func(*args, **(kwargs or {}))
        name = NAMES.get(func._opname) if getattr(func, "namespace", "") in ("c10d", "_c10d_functional") else None
        if name:
            self.calls[name] += 1
            sizes = [tensor.nbytes for tensor in tensors([args, output])]
            self.handed_bytes[name] += max(sizes)
            if name in ("allgather", "reduce-scatter"):
                self.sharded_bytes_sent += max(sizes) - min(sizes)
        return output
