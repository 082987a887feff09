"""Search for MNIST's settings, a trial per rank. Start it with: mpiexec -n 2 python -m mpi4py search.py"""

import argparse
from pathlib import Path

import optuna
import torch
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from mpi4py import MPI
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset

EPOCHS = 3


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=12_000, help="images to train on, and to choose by")
    parser.add_argument("--trials", type=int, default=12, help="trials of all ranks, those of earlier starts included")
    parser.add_argument("--out", type=Path, default=Path("study.log"), help="journal of the study, to go on from")
    return parser.parse_args()


def own_device(comm):
    """Return this rank's device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    local_rank = comm.Split_type(MPI.COMM_TYPE_SHARED).rank
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    return torch.device(accelerator.type, local_rank % torch.accelerator.device_count())


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    return right.item() / len(loader.dataset)


def make_objective(train, held_out, test, device):
    """Return a function that trains with the settings of a trial, and returns the accuracy on held-out images."""
    held_out_loader = DataLoader(held_out, batch_size=500)
    test_loader = DataLoader(test, batch_size=500)

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-3, 1, log=True)
        momentum = trial.suggest_categorical("momentum", [0.0, 0.5, 0.9])
        torch.manual_seed(1)
        model = cnn().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        loader = DataLoader(train, batch_size=64, shuffle=True)
        for epoch in range(1, EPOCHS + 1):
            model.train()
            for images, labels in loader:
                optimizer.zero_grad()
                cross_entropy(model(images.to(device)), labels.to(device)).backward()
                optimizer.step()
            found = accuracy(model, held_out_loader, device)
            trial.report(found, epoch)
            trial.set_user_attr("test", accuracy(model, test_loader, device))  # kept, but it chooses nothing
            if trial.should_prune():
                raise optuna.TrialPruned
        return found

    return objective


def try_again(study):
    """Give the trials that a crash has cut off to the next ranks that ask."""
    for cut_off in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(cut_off.number, state=TrialState.FAIL)
        study.enqueue_trial(cut_off.params)


def main():
    args = parse_arguments()
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)  # one core per process, however many processes there are
    if args.images < 4:
        raise SystemExit(f"--images {args.images} is too few to train on and to choose by: give 4 or more.")
    images = MNIST(args.data, "train", args.images)
    train = args.images * 3 // 4  # no trial trains on the other quarter, which chooses among trials
    held_out = Subset(images, range(train, args.images))
    objective = make_objective(Subset(images, range(train)), held_out, MNIST(args.data, "test"), own_device(comm))

    storage = JournalStorage(JournalFileBackend(str(args.out)))  # one file, which all ranks append to
    study = optuna.create_study(storage=storage, study_name="mnist", direction="maximize", load_if_exists=True)
    if comm.rank == 0:
        try_again(study)
    done = len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]))
    left = comm.bcast(args.trials - done)  # rank 0's count. It also makes the others wait for what rank 0 does above.
    study.optimize(objective, n_trials=max(0, (left + comm.rank) // comm.size))
    comm.barrier()
    if comm.rank == 0:
        pruned = len(study.get_trials(states=[TrialState.PRUNED]))
        print(f"{len(study.trials)} trials, {pruned} pruned; {study.best_params}")
        test_accuracy = study.best_trial.user_attrs["test"]
        print(f"held-out accuracy {study.best_value:.2%}, test accuracy {test_accuracy:.2%}")


if __name__ == "__main__":
    main()
