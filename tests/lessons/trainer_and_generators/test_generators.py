"""The trainer and the generators of 07f: the notebook's own cells, on one process and on three ranks."""

import functools
import math
import sys

import cloudpickle
import pytest
import torch
from drawn import check_layout, curve
from exercises.answers import code_cells
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workshop_lib.exercises.solutions import Solution

from lessons import trainer_and_generators
from lessons.trainer_and_generators import figures
from lessons.trainer_and_generators.policy import ANSWER, DIGITS, Policy

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file
NOTEBOOK = "07f_trainer_and_generators"
RANKS = 3
STEPS = 5
PROMPT = 12
LABELS = ["without ratios: breaks at staleness 2", "with clipped ratios: doesn't break"]


@functools.cache
def program() -> str:
    """The cells that define what the trainer and the generators do."""
    _, cells = code_cells(NOTEBOOK)
    chosen = [cell for cell in cells if any(f"def {name}(" in cell for name in ("reward", "generate", "learn"))]
    return "\n".join(cell.partition("\n")[2] for cell in chosen)


def names(code: str) -> dict:
    """What the cells define."""
    from mpi4py import MPI

    namespace = {"MPI": MPI, "lesson": trainer_and_generators, "__name__": "notebook"}
    exec(code, namespace)
    return namespace


def trained_policy() -> Policy:
    """A policy that prefers some digits."""
    policy = Policy(seed=1)
    torch.nn.init.normal_(policy.logits.weight)
    return policy


def every_text() -> torch.Tensor:
    answers = torch.cartesian_prod(*[torch.arange(DIGITS)] * ANSWER)
    return torch.cat([torch.full((len(answers), 1), PROMPT), answers], dim=1)


def test_the_policy_writes_texts_as_often_as_it_says():
    policy = trained_policy()
    likely = policy.log_probabilities(every_text()).sum(dim=1).exp().detach()
    assert float(likely.sum()) == pytest.approx(1, abs=1e-5)
    texts = policy.write(torch.full((4000,), PROMPT), torch.Generator().manual_seed(1))
    which = (texts[:, 1:] * torch.tensor([100, 10, 1])).sum(dim=1)
    often = torch.bincount(which, minlength=len(likely)) / len(texts)
    assert float((often - likely).abs().max()) < 0.03 < float(likely.max()) / 2


def test_a_ratio_weighs_a_digit_until_it_has_moved_by_a_fifth_where_its_advantage_asks():
    loss = Solution(NOTEBOOK, "clipped_loss").load()
    for ratio, advantage, weight in (
        (1.0, 1, 1.0),
        (1.1, 1, 1.1),
        (1.3, 1, 0),
        (0.5, 1, 0.5),
        (0.9, -1, 0.9),
        (0.7, -1, 0),
        (2, -1, 2),
    ):
        new = torch.tensor([[ratio]]).log().requires_grad_()
        loss(new, torch.zeros(1, 1), torch.tensor([[float(advantage)]])).backward()
        assert float(new.grad) == pytest.approx(-advantage * weight, abs=1e-6), ratio


def seen_by_the_trainer(code: str, staleness: int) -> list[list]:
    """On a rank: the trainer's weights, the texts and the generators' log-probabilities of each step."""
    notebook = names(code)
    policy = Policy(seed=1)
    mail = trainer_and_generators.Mail(notebook["comm"])
    reward = notebook["reward"]
    loss = notebook["plain_loss"]
    seen: list[list] = []

    def noting_reward(texts):
        seen.append([parameters_to_vector(policy.parameters()).detach(), texts])
        return reward(texts)

    def noting_loss(new, old, advantage):
        seen[-1].append(old)
        return loss(new, old, advantage)

    notebook.update(reward=noting_reward)
    if notebook["comm"].rank == 0:
        notebook["learn"](mail, policy, STEPS, staleness, noting_loss)
    else:
        notebook["generate"](mail, policy, 1, STEPS, staleness)
    mail.close()
    return seen


@pytest.mark.full
@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("staleness", [0, 2])
def test_each_text_was_written_with_the_trainers_rounded_weights_of_so_many_steps_ago(team, staleness):
    steps = team.run(seen_by_the_trainer, program(), staleness, show=False)[0]
    assert len(steps) == STEPS
    generator = Policy(seed=2)
    for step, (_, texts, old) in enumerate(steps):
        weights, *_ = steps[max(0, step - staleness)]
        vector_to_parameters(weights.bfloat16().float(), generator.parameters())
        expected = generator.log_probabilities(texts)
        assert torch.allclose(old, expected, atol=1e-5)
        assert len(texts) == 128 and not torch.equal(texts[:64], texts[64:]), "each generator writes texts of its own"
    assert (steps[2][0] - steps[0][0]).abs().max() > 1e-3, "else the comparison could not fail"


def test_training_breaks_at_the_first_staleness_that_costs_a_fifth_of_the_reward():
    rewards = {False: [1.0, 0.9, 0.79, 0.1], True: [1.0, 0.9, 0.85, 0.81]}
    runs = []
    for ratios, of_staleness in rewards.items():
        for staleness, reward in zip((0, 1, 2, 4), of_staleness, strict=True):
            for difference in (-0.05, 0.05):
                runs.append({"staleness": staleness, "ratios": ratios, "reward": reward + difference})
    assert figures.breaks_at(runs, ratios=False) == 2
    assert math.isnan(figures.breaks_at(runs, ratios=True))
    figure = figures.rewards(runs)
    [axes] = figure.axes
    assert curve(axes)[1].round(2).tolist() == rewards[False] and curve(axes, 1)[1].round(2).tolist() == rewards[True]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == LABELS
    assert "median of 2 seeds" in figure.texts[1].get_text()
    check_layout(figure)
