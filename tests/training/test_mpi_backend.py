"""The backend that averages by hand keeps its gradients in one buffer, whatever the training loop does to them."""

from types import SimpleNamespace

import pytest
import torch

from workshop_lib.training.backends.mpi import Mpi


class TwoAlike:
    """The communicator of two ranks whose gradients are the same."""

    def Bcast(self, values, root):
        pass

    def Allreduce(self, in_place, values, operation):
        values *= 2


@pytest.mark.parametrize("clear", [{}, {"set_to_none": True}, {"set_to_none": False}, None])
def test_gradients_are_averaged_however_they_are_cleared(clear):
    world = SimpleNamespace(rank=0, world_size=2, mpi_comm=TwoAlike)
    backend = Mpi(world, torch.device("cpu"))
    model = torch.nn.Linear(3, 2)
    _, optimizer = backend.wrap(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    frozen = model.bias.requires_grad_(False)
    for step in range(1, 4):
        if clear is not None:
            optimizer.zero_grad(**clear)
        (step * model(torch.ones(1, 3)).sum()).backward()
        start, end = backend.average_gradients()
        assert start <= end
        expected = step if clear is not None else step * (step + 1) / 2  # they add up when nothing clears them
        assert torch.equal(model.weight.grad, torch.full((2, 3), float(expected)))
        assert torch.equal(backend.flat[:6].view(2, 3), model.weight.grad)
        assert torch.equal(frozen.grad, torch.zeros(2))
        assert model.weight.grad.data_ptr() == backend.flat.data_ptr(), "the same memory: nothing is copied"
