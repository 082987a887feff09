"""What a training in 06_zero_and_fsdp cost one rank, as the notebook shows it."""

from dataclasses import dataclass, field


@dataclass
class TrainingCost:
    """What training cost one rank, per step, and how far its weights are from those of one process."""

    parameters: int
    held_bytes: dict[str, int]  # by KINDS, between the backward pass and the step
    distance: float  # as a fraction of the weights' norm
    sent_bytes: float  # by this rank; where PyTorch sends, as many as in a ring
    calls: dict[str, int] = field(default_factory=dict)  # of PyTorch's collectives, by name

    @property
    def sent(self) -> float:
        """Bytes sent per step, as a multiple of n, the bytes of all weights."""
        return self.sent_bytes / (4 * self.parameters)

    def __repr__(self) -> str:
        held = {kind: size / self.parameters for kind, size in self.held_bytes.items()}
        parts = ", ".join(f"{kind} {size:.2f}" for kind, size in held.items())
        lines = [f"{sum(held.values()):.2f} bytes per parameter: {parts}"]
        calls = " and ".join(f"{calls} {name}s" for name, calls in self.calls.items())
        lines.append(f"{self.sent:.2f} n bytes sent per step{f', in {calls}' if calls else ''}")
        return "\n".join([*lines, f"weights differ by {self.distance:.3%} from those of one process"])
