"""What a rank writes down about a script, one JSON object per line, and what the checks read: the types of both.

On the rank, a digest or a number may still be a tensor, so that nothing waits for a GPU; JSON holds its values.
"""

from dataclasses import dataclass, field
from typing import Any

Digests = Any  # one whole number per tensor; a tensor of them on the rank; None if nothing was looked at
Number = Any  # a float, or a tensor of one value on the rank


@dataclass(kw_only=True)
class Record:
    """One line of a rank's log. step: the number of the step that the rank was in."""

    step: int = 0


@dataclass(kw_only=True)
class StartRecord(Record):
    pid: int
    main_thread: int


@dataclass(kw_only=True)
class GroupRecord(Record):
    """The script has called init_process_group."""

    size: int


@dataclass(kw_only=True)
class DdpRecord(Record):
    """The script has wrapped a model in DDP. before, after: digests of its weights."""

    before: Digests
    after: Digests
    broadcast_buffers: bool
    group: int  # ranks


@dataclass(kw_only=True)
class ShardRecord(Record):
    """The script calls fully_shard. before: digests of the weights that are still whole."""

    names: list[str]
    before: Digests


@dataclass
class ParameterRecord:
    name: str
    shape: list[int]
    trains: bool
    shared_out: bool  # each rank holds another part of it


@dataclass(kw_only=True)
class ModelRecord(Record):
    """A model when it trains for the first time."""

    model: int = -1  # its number
    ddp: bool = False
    fsdp: bool = False
    around_ddp: bool = False  # the script calls the module in a DDP wrapper
    normalizes: bool = False  # by the statistics of a batch
    parameters: list[ParameterRecord] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    meshes: list[list[int]] = field(default_factory=list)
    device: str = ""
    accelerators: int = 0
    pretended_gpu: bool = False  # the device and the accelerators are those of a pretended host
    joined_by: list[str] = field(default_factory=list)  # libraries that may join the ranks, such as mpi4py


@dataclass
class SamplerSettings:
    """Those of a DistributedSampler."""

    num_replicas: int
    rank: int
    shuffle: bool
    seed: int
    epoch: int


@dataclass(kw_only=True)
class EpochRecord(Record):
    """A DataLoader begins an epoch. None stands for what it doesn't know."""

    loader: int
    epoch: int
    dataset: str
    samples: int | None
    batch: int | None
    batches: int | None
    sampler: str
    open_passes: int = 0  # backward passes of a step that hasn't come to its optimizer yet
    subset: str | None = None  # a digest of a Subset's indices
    distributed: SamplerSettings | None = None


@dataclass(kw_only=True)
class IndicesRecord(Record):
    """The indices of samples that a loader took next."""

    loader: int
    epoch: int
    values: list[int]


@dataclass(kw_only=True)
class LabelsRecord(Record):
    """The whole numbers, such as a class, of each of a batch's samples."""

    loader: int
    epoch: int
    values: list[list[int]]


@dataclass
class Forward:
    """An outermost forward pass. random: digests of the generators' states when it begins."""

    model: int
    loader: int | None
    training: bool
    around_ddp: bool = False
    closure: bool = False  # an optimizer calls it, as L-BFGS does
    random: dict[str, Any] | None = None
    drew: bool = False  # random numbers
    begin_s: float = 0.0
    seconds: float = 0.0
    size: int = 0  # samples
    samples: Digests = None


@dataclass
class Backward:
    """A backward pass. sync: whether it sends gradients."""

    begin_s: float
    seconds: float
    sync: bool


@dataclass
class Clip:
    norm: Number
    line: str
    scaled: bool  # by a GradScaler


@dataclass
class LossPart:
    """A loss over `count` samples, tokens or values: their "mean" or "sum".

    weight: how many times it counts in what the backward pass begins with; None until that pass has reached it.
    """

    line: str
    count: Number
    reduction: str
    name: str
    value: Number = None
    weight: Number = None


@dataclass
class OptimizerStep:
    name: str
    lr: list[float]


@dataclass
class CollectiveCalls:
    """Calls of one collective by the script, in one phase of a step."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class StepRecord(Record):
    """One optimizer step, with what came before it. None stands for what wasn't looked at."""

    time: float = 0.0
    end_s: float | None = None
    data_s: float = 0.0
    forwards: list[Forward] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    collectives: dict[str, CollectiveCalls] = field(
        default_factory=dict
    )  # by name and phase, such as "all_reduce between"
    drew_data: list[str] = field(default_factory=list)  # the generators that loading drew from
    threads: int = 0
    # weights
    weights: Digests = None  # before the step
    weights_model: int | None = None
    own: Digests = None  # of this rank's shares
    # gradients and losses
    anew: int = 0  # backward passes that began without gradients
    kept: bool | None = None  # the last step's gradients were still there
    after_backward: float | None = None  # a projection of this rank's gradients
    ready: float | None = None  # the same before they are clipped or used
    share_scale: float | None = None  # how many times as large this rank's shares are when the optimizer uses them
    roots: list[Number] = field(default_factory=list)  # the values that backward passes began with
    losses: list[LossPart] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    gradients: Digests = None
    gradients_of: list[str] = field(default_factory=list)
    # the optimizers
    optimizers: list[OptimizerStep] = field(default_factory=list)
    skipped: bool = False  # by a GradScaler
    without_gradient: list[str] | None = None
    stepped_names: list[str] | None = None
    outside: list[tuple[str, int]] = field(default_factory=list)  # parameters that the model lacks, with digests

    @property
    def is_whole(self) -> bool:
        """Whether the step came to its optimizer."""
        return bool(self.optimizers) or self.skipped


@dataclass(kw_only=True)
class EvaluationRecord(Record):
    line: str
    forwards: list[Forward] = field(default_factory=list)
    collectives: dict[str, CollectiveCalls] = field(default_factory=dict)
    on: list[str] = field(default_factory=list)  # layers in training mode that work differently then
    others: dict[str, Digests] = field(default_factory=dict)  # weights of models that don't train, by number
    buffers: Digests = None


@dataclass(kw_only=True)
class CollectiveRecord(Record):
    """A collective that the script is about to call."""

    name: str
    line: str


@dataclass(kw_only=True)
class WriteRecord(Record):
    path: str
    mode: str
    line: str


@dataclass(kw_only=True)
class SaveRecord(Record):
    """torch.save. shares: the tensors of which this rank holds a part only."""

    path: str
    shares: int
    line: str


@dataclass(kw_only=True)
class LoadRecord(Record):
    """what: a "file", the state of a "model" or of an "optimizer"."""

    what: str
    line: str
    optimizer: bool = False  # the file holds an optimizer's state
    counter: str = ""  # the file's name for the number of epochs or steps before it


@dataclass(kw_only=True)
class UnseenRecord(Record):
    what: str
    text: str
    line: str


@dataclass(kw_only=True)
class ErrorRecord(Record):
    error: str  # its type
    text: str
    place: tuple[str, int, str] | None  # file, line and function of the script
    time: float


@dataclass(kw_only=True)
class EndRecord(Record):
    weights: Digests = None
    buffers: Digests = None
    collectives: dict[str, CollectiveCalls] = field(default_factory=dict)


@dataclass(kw_only=True)
class FetchRecord(Record):
    """A loading worker has loaded samples. random: the generators' states before; drew: which of them changed."""

    worker: int
    random: dict[str, Any]
    drew: list[str]


KINDS = {kind.__name__.removesuffix("Record").lower(): kind for kind in Record.__subclasses__()}
PARTS: dict[str, Any] = {
    "forwards": Forward,
    "backwards": Backward,
    "losses": LossPart,
    "clips": Clip,
    "optimizers": OptimizerStep,
    "parameters": ParameterRecord,
}


def as_json(record: Record) -> dict[str, Any]:
    """The object of a record, whose parts json.dumps hands to `plain`."""
    kind = type(record).__name__.removesuffix("Record").lower()
    return {"kind": kind, **vars(record)}


def plain(value: Any) -> Any:
    """How JSON holds what it doesn't know: parts as objects, tensors as lists, everything else as its text."""
    if type(value) in (*PARTS.values(), CollectiveCalls, SamplerSettings):
        return vars(value)
    return value.detach().tolist() if hasattr(value, "detach") else str(value)


def parse(values: dict[str, Any]) -> Record:
    """The record that one JSON object holds."""
    kind = KINDS[values.pop("kind")]
    for name, part in PARTS.items():
        if name in values:
            values[name] = [part(**each) for each in values[name]]
    if "collectives" in values:
        values["collectives"] = {name: CollectiveCalls(**each) for name, each in values["collectives"].items()}
    if values.get("distributed"):
        values["distributed"] = SamplerSettings(**values["distributed"])
    return kind(**values)
