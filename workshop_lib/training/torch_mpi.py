"""PyTorch's collectives over MPI: a process group written in Python.

PyTorch's wheels have no MPI ("Distributed package doesn't have MPI built in"), so on CPUs they send with gloo, over
TCP. Once this file is imported, mpi4py can carry the messages instead, in whatever way this machine's MPI does it best:

    dist.init_process_group("mpi4py", store=..., rank=..., world_size=...)    with ranks as in MPI.COMM_WORLD
    group = dist.new_group(backend="mpi4py")                                  or in addition to another kind of group

Each call starts a nonblocking MPI operation and returns a Work. Its wait() returns once the values have arrived, and
raises CommError if that takes too long. MPI moves messages inside its own calls, so all operations under way make
progress whenever this rank waits for anything.
"""
# mypy: disable-error-code="override, assignment, call-arg"
# PyTorch's stubs overload these methods, but torch.distributed calls only one form of each.

import functools
import zlib
from collections.abc import Callable
from datetime import timedelta
from select import select
from time import monotonic

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.autograd import Variable
from torch.distributed import distributed_c10d as c10d

from workshop_lib.errors import WorkshopError

NAME = "mpi4py"
OPERATIONS = {getattr(dist.ReduceOp, name): getattr(MPI, name) for name in ("SUM", "MIN", "MAX", "BAND", "BOR", "BXOR")}
OPERATIONS |= {dist.ReduceOp.PRODUCT: MPI.PROD, dist.ReduceOp.AVG: MPI.SUM}  # AVG divides the sum afterwards
# MPI can't compute with the types on the left. It gets their values as the types on the right, which can hold them all.
REDUCED_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}
SPIN_S = 1e-4  # poll MPI without a pause for this long; after that, leave the core to whoever computes
PAUSE_S = 5e-5


class CommError(WorkshopError, RuntimeError):
    """An operation did not end, or MPI cannot do it; the message says which operation, and what to do."""


class Widened(np.ndarray):
    """Numbers in a wider type than the tensor's. Emulated links carry `nbytes`, which are the tensor's own."""

    share = 1.0  # the bytes of one of the tensor's numbers, as a share of those here

    @property
    def nbytes(self) -> int:
        return round(self.share * self.size * self.itemsize)


class Buffer:
    """A tensor's values in the form that MPI takes: a contiguous array, in the tensor's own memory if possible.

    The array has bytes if the values are only moved, and numbers if they are reduced. Raises CommError for a tensor on
    a GPU.
    """

    def __init__(self, tensor: torch.Tensor, reduced: bool = False):
        if tensor.device.type != "cpu":
            raise CommError(f"this tensor is on {tensor.device}, but MPI sends from CPUs here: move it with .cpu()")
        self.tensor = tensor.detach()
        dtype = REDUCED_AS.get(tensor.dtype, tensor.dtype) if reduced else tensor.dtype
        self.values = self.tensor.to(dtype).contiguous().reshape(-1)
        self.array = (self.values if reduced else self.values.view(torch.uint8)).numpy()
        if dtype != self.tensor.dtype:
            widened = self.array.view(Widened)
            widened.share = self.tensor.itemsize / dtype.itemsize
            self.array = widened

    def give_back(self) -> None:
        """Copy the values that arrived into the tensor, unless they arrived in the tensor's own memory."""
        if self.values.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.values.view(self.tensor.shape))


class MpiWork(dist._Work):
    """MPI calls under way. Each call is a name and its arguments, which keep alive the memory that MPI works on.

    `results` are tensors. `finish` puts the values that arrived into them, once all calls have completed.
    """

    def __init__(self, group: "MpiProcessGroup", calls: list[tuple], results: list, finish: Callable | None):
        super().__init__()
        self.group = group
        self.calls = calls
        self.results = results
        self.finish = finish
        started = [getattr(group.comm, name)(*arguments) for name, *arguments in calls]
        # A request of emulated time (machine/emulation/comm.py) has further parts.
        # It moves this rank's clock when it is done.
        self.emulated = [request for request in started if hasattr(request, "arrive")]
        self.requests = [part for request in started for part in getattr(request, "parts", [request])]
        self.statuses = [MPI.Status() for _ in self.requests]
        self.done = False
        self.end_s: float | None = None  # when the last of them arrived, if their time is emulated

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the results are in place. Raises CommError after `timeout`, by default the group's own limit."""
        limit_s = timeout.total_seconds() if timeout else self.group.timeout_s
        for request in self.emulated:
            request.enter()
        now = monotonic()
        if not self.done and not (self._poll(now + SPIN_S, 0.0) or self._poll(now + limit_s, PAUSE_S)):
            self.group.broken = f"{self.calls[0][0]} had not ended after {limit_s:g} s on rank {self.group.rank()}"
            raise CommError(f"{self.group.broken}: the other ranks may have failed or be elsewhere. Restart all ranks.")
        return self._complete()

    def is_completed(self) -> bool:
        return self.done or (self._poll(0.0, 0.0) and self._complete())

    def _poll(self, deadline: float, pause_s: float) -> bool:
        """Poll MPI until all calls have completed or time is up. Returns whether they have completed.

        The loop is on one line, so that a stuck rank is seen to stay at that line.
        """
        pause = functools.partial(select, [], [], [], pause_s)  # returns three empty lists, which count as true
        while not (arrived := MPI.Request.Testall(self.requests, self.statuses)) and monotonic() < deadline and pause():
            pass
        return arrived

    def _complete(self) -> bool:
        self.group.under_way.discard(self)
        finish = self.finish
        self.finish = None
        for request in self.emulated:
            request.arrive(self.statuses[0])
            self.end_s = request.message.end_s
            request.leave()
        self.emulated = []
        self.done = True
        if finish is not None:
            finish()
        return True

    def get_future(self) -> torch.futures.Future:
        """Return the future that DDP asks for during the backward pass and reads in a callback at its end.

        Nothing in Python waits for a future, so it has to be complete by then. Autograd runs callbacks in order, and
        the one queued here comes before DDP's. Outside the nodes of a backward pass, this call blocks instead: in such
        a callback, where a static graph's first step and PowerSGD's second collective begin, nothing else comes first.
        """
        future: torch.futures.Future = torch.futures.Future()

        def complete() -> None:
            self.wait()
            future.set_result(self.results)  # runs what the hook does with these values

        if torch._C._current_autograd_node() is None:
            complete()
        else:
            Variable._execution_engine.queue_callback(complete)
        return future

    def _source_rank(self) -> int:
        """The rank whose message a receive from any rank took; torch.distributed asks once it has arrived."""
        return self.statuses[0].Get_source()


class MpiProcessGroup(dist.ProcessGroup):
    """The process group that torch.distributed calls, on a communicator that nobody else uses.

    All ranks of the group call the same methods in the same order, and no method blocks. The names are PyTorch's.
    `comm` may be any object with mpi4py's nonblocking calls (see counting.CountedCollectives).
    """

    def __init__(self, comm, timeout_s: float):
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self.timeout_s = timeout_s
        self.calls_made = 0
        self.under_way: set[MpiWork] = set()  # keeps alive the memory that MPI writes into
        self.broken = ""  # names the call that never ended, which no other call can follow

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self.its_name = name

    def getGroupName(self) -> str:
        return self.its_name

    def _get_backend(self, device: torch.device) -> "MpiProcessGroup":
        """Return what carries the messages of a device: PyTorch 2.15 asks every group before it batches sends."""
        return self

    def _get_sequence_number_for_group(self) -> int:
        return self.calls_made

    def start(self, calls: list[tuple], results: list, finish: Callable | None = None) -> MpiWork:
        """Start these calls of `comm`, the same ones on all ranks. Raises CommError if an earlier call never ended."""
        if self.broken:
            raise CommError(f"{calls[0][0]} can't start, because {self.broken}. Restart all ranks.")
        self.calls_made += 1
        work = MpiWork(self, calls, results, finish)
        self.under_way.add(work)
        return work

    def allreduce(self, tensors: list, opts) -> MpiWork:
        operation, divisor = _operation(opts, self.size())
        buffers = [Buffer(tensor, reduced=True) for tensor in tensors]
        calls = [("Iallreduce", MPI.IN_PLACE, buffer.array, operation) for buffer in buffers]
        return self.start(calls, tensors, lambda: _give_back(buffers, divisor))

    def allreduce_coalesced(self, tensors: list, opts) -> MpiWork:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list, opts) -> MpiWork:
        operation, divisor = _operation(opts, self.size())
        buffer = Buffer(tensors[0], reduced=True)
        if self.rank() != opts.rootRank:
            return self.start([("Ireduce", buffer.array, None, operation, opts.rootRank)], tensors)
        call = ("Ireduce", MPI.IN_PLACE, buffer.array, operation, opts.rootRank)
        return self.start([call], tensors, lambda: _give_back([buffer], divisor))

    def reduce_scatter_single_coalesced(self, outputs: list, inputs: list, opts) -> MpiWork:
        operation, divisor = _operation(opts, self.size())
        wholes, parts = ([Buffer(tensor, reduced=True) for tensor in tensors] for tensors in (inputs, outputs))
        pairs = zip(wholes, parts, strict=True)
        calls = [("Ireduce_scatter_block", whole.array, part.array, operation) for whole, part in pairs]
        return self.start(calls, outputs, lambda: _give_back(parts, divisor))

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts) -> MpiWork:
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    def reduce_scatter(self, outputs: list, inputs: list, opts) -> MpiWork:
        return self.reduce_scatter_single_coalesced(outputs, [torch.stack(parts) for parts in inputs], opts)

    def broadcast(self, tensors: list, opts) -> MpiWork:
        buffers = [Buffer(tensor) for tensor in tensors]
        calls = [("Ibcast", buffer.array, opts.rootRank) for buffer in buffers]
        return self.start(calls, tensors, lambda: _give_back(buffers))

    def all_gather_single_coalesced(self, outputs: list, inputs: list, opts=None) -> MpiWork:
        wholes, parts = ([Buffer(tensor) for tensor in tensors] for tensors in (outputs, inputs))
        calls = [("Iallgather", part.array, whole.array) for whole, part in zip(wholes, parts, strict=True)]
        return self.start(calls, outputs, lambda: _give_back(wholes))

    def all_gather_single(self, output: torch.Tensor, part: torch.Tensor, opts=None) -> MpiWork:
        return self.all_gather_single_coalesced([output], [part])

    def allgather(self, outputs: list, inputs: list, opts=None) -> MpiWork:
        """Gather each input from all ranks. outputs: for each input, a list of tensors, one per rank."""
        wholes = [torch.stack(parts) for parts in outputs]
        calls = [("Iallgather", Buffer(p).array, Buffer(w).array) for w, p in zip(wholes, inputs, strict=True)]
        return self.start(calls, outputs[0], lambda: _share_out(wholes, outputs))

    def gather(self, outputs: list, inputs: list, opts) -> MpiWork:
        """Gather the input of all ranks on the root. outputs: there, a list of tensors, one per rank."""
        wholes = [torch.stack(parts) for parts in outputs if parts]
        whole = Buffer(wholes[0]).array if wholes else None
        call = ("Igather", Buffer(inputs[0]).array, whole, opts.rootRank)
        return self.start([call], outputs, lambda: _share_out(wholes, outputs))

    def scatter(self, outputs: list, inputs: list, opts) -> MpiWork:
        part = Buffer(outputs[0])
        whole = Buffer(torch.stack(inputs[0])).array if inputs else None
        return self.start([("Iscatter", whole, part.array, opts.rootRank)], outputs, part.give_back)

    def all_to_all_single(self, output, tensor, output_rows: list, input_rows: list, opts=None) -> MpiWork:
        """Send rows of `tensor` to all ranks in rank order, and fill `output` with their rows in the same order.

        Without numbers of rows, the rows are split evenly.
        """
        going = Buffer(tensor)
        coming = Buffer(output)
        call = ("Ialltoallv", _cut(going, input_rows, self.size()), _cut(coming, output_rows, self.size()))
        return self.start([call], [output], coming.give_back)

    def alltoall(self, outputs: list, inputs: list, opts=None) -> MpiWork:
        """Send a tensor to each rank, and receive one from each; they may have different sizes."""
        going, coming = (Buffer(torch.cat([tensor.reshape(-1) for tensor in each])) for each in (inputs, outputs))
        sent, received = ([tensor.numel() for tensor in tensors] for tensors in (inputs, outputs))
        call = ("Ialltoallv", _cut(going, sent, self.size()), _cut(coming, received, self.size()))

        def finish() -> None:
            for tensor, values in zip(outputs, coming.tensor.split(received), strict=True):
                tensor.copy_(values.view(tensor.shape))

        return self.start([call], outputs, finish)

    def send(self, tensors: list, dest: int, tag: int) -> MpiWork:
        return self.start([("Isend", Buffer(tensor).array, dest, tag) for tensor in tensors], tensors)

    def recv(self, tensors: list, source: int, tag: int) -> MpiWork:
        buffers = [Buffer(tensor) for tensor in tensors]
        calls = [("Irecv", buffer.array, source, tag) for buffer in buffers]
        return self.start(calls, tensors, lambda: _give_back(buffers))

    def recv_anysource(self, tensors: list, tag: int) -> MpiWork:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a limit. Unlike gloo's, it doesn't say which rank is missing: ranks that are watched do."""
        self.barrier().wait(timeout)

    def barrier(self, opts=None) -> MpiWork:
        return self.start([("Ibarrier",)], [])


def _operation(opts, size: int) -> tuple[MPI.Op, int]:
    """Return MPI's operation, and the number to divide its result by. Raises CommError for an unknown operation."""
    for kind, operation in OPERATIONS.items():
        if opts.reduceOp == kind:
            return operation, size if kind == dist.ReduceOp.AVG else 1
    raise CommError(f"MPI cannot reduce by {opts.reduceOp}: use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR")


def _give_back(buffers: list[Buffer], divisor: int = 1) -> None:
    for buffer in buffers:
        if divisor > 1:
            buffer.values /= divisor
        buffer.give_back()


def _share_out(wholes: list, outputs: list) -> None:
    """Copy the parts of each whole into the output tensors for them."""
    for whole, parts in zip(wholes, outputs, strict=True):
        for part, values in zip(parts, whole, strict=True):
            part.copy_(values.view(part.shape))


def _cut(buffer: Buffer, rows: list[int], size: int) -> list:
    """Return what MPI's vector calls take: the array, each rank's number of bytes, where they begin, and the type."""
    total = sum(rows) if rows else size
    row_bytes = len(buffer.array) // max(total, 1)
    counts = [row_bytes * number for number in rows or [1] * size]
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    return [buffer.array, (counts, starts), MPI.BYTE]


def create(opts, _backend_options=None) -> MpiProcessGroup:
    """Create the group that torch.distributed asks for, with its own communicator. All ranks of the group call it.

    Raises CommError if they do not have the same ranks in MPI.
    """
    world = MPI.COMM_WORLD
    ranks = opts.global_ranks_in_group or list(range(opts.group_size))
    if (own := ranks[opts.group_rank]) != world.rank or opts.group_size > world.size:
        raise CommError(f"rank {own} is rank {world.rank} of {world.size} to MPI: start the ranks with mpiexec")
    comm = world.Create_group(world.group.Incl(ranks), zlib.crc32(opts.group_id.encode()) % 2**15)
    return MpiProcessGroup(comm, opts.timeout.total_seconds())


def joined(timeout: timedelta) -> dist.ProcessGroup:
    """Return the group of all ranks over MPI, which the first call creates and later calls reuse. All ranks call it.

    Each emulation of a machine has a group of its own.
    """
    places = getattr(MPI.COMM_WORLD, "places", None)
    over_mpi = (group for group in c10d._world.pg_map if isinstance(group, MpiProcessGroup))
    made = (group for group in over_mpi if getattr(group.comm, "places", None) is places)
    whole = next((group for group in made if group.size() == dist.get_world_size()), None)
    return whole or dist.new_group(backend=NAME, timeout=timeout)


def carry_every_group() -> None:
    """Have MPI carry the messages of each process group that gloo would carry, under the name that was asked for.

    Ranks that emulate a machine call this, because only MPI's messages take emulated time. So a script that joins
    "gloo", "cpu:gloo,cuda:nccl" or no backend by name runs unchanged.
    """
    plain = c10d._new_process_group_helper

    @functools.wraps(plain)
    def over_mpi(size, rank, ranks, backend, *args, **kwargs):
        name = dist.Backend(backend)
        config = c10d.BackendConfig(name)
        if config.get_device_backend_map().get("cpu") != dist.Backend.GLOO:
            return plain(size, rank, ranks, backend, *args, **kwargs)
        group, store = plain(size, rank, ranks, dist.Backend(NAME), *args, **kwargs)
        if isinstance(group, MpiProcessGroup):
            name = dist.Backend.GLOO if name == dist.Backend.UNDEFINED else name
            c10d._world.pg_map[group] = (name, store)
            c10d._world.pg_backend_config[group] = str(config)
        return group, store

    c10d._new_process_group_helper = over_mpi


dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
