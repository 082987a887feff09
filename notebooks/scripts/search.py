"""Search for MNIST's settings, a trial per rank. Start it with: mpiexec -n 2 python -m mpi4py search.py"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import optuna
import torch
from mpi4py import MPI
from torch import nn

mnist = Path(__file__).resolve().parent / "../../assets/mnist"  # its place in the workshop; --data names another
options = {"data": mnist, "images": 12_000, "trials": 12, "out": Path("study.log")}
parser = argparse.ArgumentParser(description=__doc__)
for name, default in options.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()
if not (args.data / "train-images-idx3-ubyte.gz").exists():
    raise SystemExit(f"train-images-idx3-ubyte.gz isn't in {args.data.resolve()}: give MNIST's folder with --data.")
comm, State = MPI.COMM_WORLD, optuna.trial.TrialState
torch.set_num_threads(1)  # one core per process, however many processes there are
names = "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"
files = [gzip.decompress((args.data / f"{name}-ubyte.gz").read_bytes()) for name in names]
values = [torch.tensor(np.frombuffer(file, np.uint8, offset=4 + 4 * file[3])) for file in files]
images, test_images = [((v.view(-1, 28, 28, 1) - 33.3184) / 78.5675).movedim(3, 1) for v in values[::2]]
labels, test_labels = [v.long() for v in values[1::2]]
if not 4 <= args.images <= len(labels):
    raise SystemExit(f"--images {args.images} doesn't do: give a number from 4 to {len(labels)}.")
train = args.images * 3 // 4  # no trial trains on the other quarter, which chooses among trials


def objective(trial):
    lr, momentum = trial.suggest_float("lr", 1e-3, 1, log=True), trial.suggest_categorical("momentum", [0.0, 0.5, 0.9])
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 56, 5), nn.MaxPool2d(2), nn.ReLU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(896, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for epoch in range(1, 4):
        for batch in torch.randperm(train).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            held_out, test = images[train : args.images].split(500), test_images.split(500)
            guesses, tested = [torch.cat([model(part).argmax(1) for part in parts]) for parts in (held_out, test)]
        trial.report(accuracy := (guesses == labels[train : args.images]).double().mean().item(), epoch)
        trial.set_user_attr("test", (tested == test_labels).double().mean().item())  # kept, but it chooses nothing
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(args.out)))  # for all ranks
study = optuna.create_study(storage=storage, study_name="mnist", direction="maximize", load_if_exists=True)
for cut_off in study.get_trials(states=[State.RUNNING]) if comm.rank == 0 else []:  # by a crash: try them again
    study.tell(cut_off.number, state=State.FAIL)
    study.enqueue_trial(cut_off.params)
left = comm.bcast(args.trials - len(study.get_trials(states=[State.COMPLETE, State.PRUNED])))  # also a barrier
study.optimize(objective, n_trials=max(0, (left + comm.rank) // comm.size))
comm.barrier()
if comm.rank == 0:
    print(f"{len(study.trials)} trials, {len(study.get_trials(states=[State.PRUNED]))} pruned; {study.best_params}")
    print(f"held-out accuracy {study.best_value:.2%}, test accuracy {study.best_trial.user_attrs['test']:.2%}")
