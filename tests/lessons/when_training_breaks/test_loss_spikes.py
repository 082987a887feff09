"""The planted loss spikes of 13: each cause shows as the notebook says, and clipping ends a single bad step."""

import pytest
import torch
from drawn import check_layout, lines

from lessons.when_training_breaks import loss_spikes
from lessons.when_training_breaks.loss_spikes import AT, RANKS, RUNS, SICK


@pytest.fixture(scope="module")
def spiking():
    torch.set_num_threads(1)  # two threads wait for each other in networks as small as this
    return loss_spikes.SpikeClinic()


@pytest.fixture(scope="module")
def runs(spiking):
    return {name: spiking.run(name) for name in RUNS}


def test_all_runs_are_the_same_up_to_the_spike(runs):
    before = {tuple(run.losses[:AT]) for run in runs.values()}
    assert len(before) == 1 and max(next(iter(before))[AT - 10 :]) < 1
    for run in runs.values():
        assert len(run.losses) == loss_spikes.STEPS and max(run.losses[AT:]) > 10


def test_one_ranks_norm_sticks_out_unless_it_is_the_learning_rate(runs):
    for name, run in runs.items():
        at_spike = run.norms[AT]
        others = [at_spike[rank] for rank in range(RANKS) if rank != SICK]
        assert (at_spike[SICK] > 50 * max(others)) == (RUNS[name] != "the learning rate")


def test_a_replay_tells_the_causes_apart(spiking):
    spikes = {
        RUNS[name]: [float(loss) > 5 for loss in spiking.replay(name)["highest loss"]] for name in RUNS
    }  # with the same batches, and with others
    assert spikes == {"a wrong gradient": [False, False], "a bad batch": [True, False], "the learning rate": [True] * 2}


def test_clipping_ends_a_bad_batchs_spike_after_one_step_and_does_not_repair_a_wrong_rate(spiking, runs):
    bad = spiking.run("Y", largest_norm=1.0).losses
    assert bad[AT] > 5 and max(bad[AT + 1 :]) < 1 < runs["Y"].losses[AT + 5]
    rate = spiking.run("Z", largest_norm=1.0).losses
    assert max(rate[AT:]) < 10 and min(rate[-10:]) > 2 * max(bad[-10:])


def test_the_figures_show_the_losses(spiking, runs):
    figure = loss_spikes.spikes(runs)
    assert figure.axes[0].lines[0].get_ydata().tolist() == runs["X"].losses
    check_layout(figure)
    figure = loss_spikes.clipped(runs["Y"], runs["X"], 1.0)
    assert lines(figure.axes[0])["clipped"][:, 1].tolist() == runs["X"].losses
    check_layout(figure)
