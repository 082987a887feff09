"""The scripts in notebooks/scripts: without the library, and with its results.

On two ranks and from the same initial weights, a script takes the same 12 steps as the library's backend: the same
samples on the same ranks at the same learning rates. The weights then differ by rounding, measured as 3e-7 of the
largest weight. Many more steps would not compare better: at the peak learning rate, one maximum of a pool that
rounding has decided otherwise grows to percents within ten steps.
"""

import ast
import copy
import io
import re
import sys
import zipfile
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from needs import needs
from notebooks.scripts_in_turn import IMAGES, SCRIPTS, short
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader
from training import ladder
from training.launching import rank_environment, run_bounded

from notebooks import scripts_in_turn
from workshop_lib.paths import ROOT
from workshop_lib.ranks.launch import which_mpi
from workshop_lib.training.backends import available
from workshop_lib.training.data import mnist
from workshop_lib.training.equivalence import largest_relative_difference
from workshop_lib.training.models import torch_cnn

from lessons.less_communication.runs import ways

pytestmark = pytest.mark.full

PYTHON = [sys.executable]
ALONE = SimpleNamespace(size=1, Allreduce=lambda array, total: np.copyto(total, array))  # one rank's communicator
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
BACKEND = {
    "mpi_by_hand": "mpi",
    "horovod_torch": "horovod",
    "horovod_tf": "horovod-tf",
    "horovod_keras": "horovod-keras",
    "ddp": "ddp",
    "fsdp2": "fsdp",
    "zero_deepspeed": "deepspeed",
}
HERE = {name: backend for name, backend in BACKEND.items() if backend in available()}
UNDER_TORCHRUN = ("ddp", "fsdp2", "zero_deepspeed")
# Scripts whose results are tested elsewhere. Here they only refuse too few images: under MPI, and under torchrun.
REFUSING = (["search"], ["diloco", "pipeline", "tensor_parallel"])
WITHIN = 1e-4
TEST_IMAGES = 500


def launcher(name):
    """The command that starts a script on two ranks, without the script."""
    if name in UNDER_TORCHRUN:
        return TORCHRUN
    return [*which_mpi.mpiexec(), "-n", "2", *PYTHON, *(("-m", "mpi4py") if name == "mpi_by_hand" else ())]


def run(*words, **variables):
    [(status, output)] = run_bounded([words], [rank_environment(**variables)], 200)
    return status, output


def write_data(folder):
    ladder.write_packed_mnist(folder, IMAGES, TEST_IMAGES)


def training_runs(folder):
    write_data(folder / "data")
    options = {"data_dir": str(folder / "data"), "train_samples": IMAGES, "epochs": 1}
    runs = []
    for name, backend in HERE.items():
        checkpoint = {"checkpoint": str(folder / f"library-{name}.pt")}
        runs.append({"name": f"library-{name}", "options": options | checkpoint | {"backend": backend}})
    return {2: runs}


def script_weights(folder, name):
    """The parameters that a script has saved, in PyTorch's layout."""
    if name == "zero_deepspeed":
        saved = torch.load(folder / f"{name}.pt" / "epoch1" / "mp_rank_00_model_states.pt", weights_only=False)
        return saved["module"]
    if name == "fsdp2":
        dcp_to_torch_save(folder / f"{name}.pt" / "epoch1", folder / "whole.pt")
        return torch.load(folder / "whole.pt", weights_only=True)["model"]
    if (saved := folder / f"{name}.pt").exists():
        return torch.load(saved, weights_only=True)["model"]
    import h5py  # here, because it comes with Keras

    content = zipfile.ZipFile(folder / f"{name}.keras").read("model.weights.h5")
    with h5py.File(io.BytesIO(content)) as file:
        layers = [file["layers"][layer]["vars"] for layer in ("conv2d", "conv2d_1", "dense")]
        weights = {
            f"{place}.{kind}": vars[key][:]
            for place, vars in zip("037", layers, strict=True)
            for kind, key in (("weight", "0"), ("bias", "1"))
        }
    for place in "03":
        weights[f"{place}.weight"] = weights[f"{place}.weight"].transpose(3, 2, 0, 1)
    weights["7.weight"] = weights["7.weight"].reshape(4, 4, -1, 10).transpose(3, 2, 0, 1).reshape(10, -1)
    return {key: torch.tensor(np.ascontiguousarray(value)) for key, value in weights.items()}


def check(name, output, trained):
    """A script's output and checkpoint are those of the library's backend."""
    [row] = ladder.agreed_record(trained.outcomes, f"library-{name}")["epochs"]
    assert f"test accuracy {row['test_accuracy']:.2%}" in output and row["test_accuracy"] > 0.7
    assert "images/s" in output
    library = ladder.weights(trained.folder, f"library-{name}")
    assert largest_relative_difference(script_weights(trained.folder, name), library) < WITHIN


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_needs_nothing_from_here(path):
    text = path.read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in imports for alias in node.names} | {getattr(n, "module", "") for n in imports}
    assert not any(str(module).startswith("workshop_lib") for module in modules)
    if path.stem != "mnist_data":
        assert path.name in text.splitlines()[0], "the docstring says how to start it"


def test_every_script_is_tested():
    """Here, elsewhere in these tests, or where its lesson is, whose tests run it."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "notebooks" / "lessons").rglob("*.py")]
    tests = "".join(path.read_text() for path in files)
    assert [path.stem for path in SCRIPTS.glob("*.py") if not re.search(rf"\b{path.stem}\b", tests)] == []


@pytest.mark.parametrize("launcher_of", ["mpi_by_hand", "ddp"])
def test_the_scripts_of_a_launcher_have_the_librarys_results(launcher_of, trained, tmp_path):
    """In one start, since imports take longest; the notebooks start each by itself.

    Settings of Keras that a user may have change nothing, and each script has a sentence for too few images.
    """
    names = [name for name in HERE if (name in UNDER_TORCHRUN) == (launcher_of in UNDER_TORCHRUN)]
    refusing = REFUSING[launcher_of in UNDER_TORCHRUN]
    (tmp_path / "keras.json").write_text(
        '{"floatx": "float16", "backend": "jax", "image_data_format": "channels_first"}'
    )
    variables = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1"}
    variables["WORKSHOP_TEST_REFUSING"] = " ".join(refusing)
    status, output = run(*launcher(launcher_of), scripts_in_turn.__file__, trained.folder, *names, **variables)
    assert status == 0, output
    said = re.findall(r"(\w+) ended: --images 3 [^.]*: give [^.]*\.", output)
    assert Counter(said) == dict.fromkeys((*names, *refusing), 2), output
    lines = [line for line in output.splitlines() if line.startswith("epoch 1: ")]
    for name, line in zip(names, lines, strict=True):
        check(name, line, trained)


@needs("deepspeed")
def test_deepspeeds_script_shards_the_weights_and_computes_in_bf16(trained, tmp_path):
    (tmp_path / "data").symlink_to(trained.folder / "data")
    options = [*short(tmp_path, "zero_deepspeed"), "--stage", "3", "--bf16"]
    status, output = run(*TORCHRUN, SCRIPTS / "zero_deepspeed.py", *options)
    assert status == 0 and float(output.rpartition("test accuracy ")[2].split("%")[0]) > 40, output
    saved = torch.load(
        tmp_path / "zero_deepspeed.pt" / "epoch1" / "zero_pp_rank_0_mp_rank_00_model_states.pt", weights_only=False
    )
    assert all(value.dtype == torch.bfloat16 for value in saved["module"].values())


def step_by_hand(model, optimizer, rows):
    """A step on these images of MNIST."""
    train = mnist.load("train")
    optimizer.zero_grad()
    images = torch_cnn.normalize(torch.tensor(train.images[rows]))
    cross_entropy(model(images), torch.tensor(train.labels[rows]).long()).backward()
    optimizer.step()


def diloco_by_hand(alone, steps, lr=0.05):
    """The weights after DiLoCo on two ranks, in this process alone."""
    common = torch_cnn.build(seed=1)
    ranks = [copy.deepcopy(common) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True) for model in ranks]
    start = parameters_to_vector(common.parameters()).detach().numpy()
    velocity = np.zeros_like(start)
    order = torch.randperm(128 * steps, generator=torch.Generator().manual_seed(2)).reshape(steps, 64, 2)
    for step, batches in enumerate(order.permute(0, 2, 1).numpy(), 1):
        for model, optimizer, rows in zip(ranks, optimizers, batches, strict=True):
            step_by_hand(model, optimizer, rows)
        if step % alone == 0 or step == steps:
            mean = np.mean([parameters_to_vector(model.parameters()).detach().numpy() for model in ranks], axis=0)
            start, velocity = ways()["DiLoCo, 8 steps alone"].outer(ALONE, start, mean, velocity)
            for model in [*ranks, common]:
                vector_to_parameters(torch.tensor(start), model.parameters())
    return common.state_dict()


def test_diloco(tmp_path):
    write_data(tmp_path / "data")
    words = [*short(tmp_path, "diloco"), "--images", "512", "--alone", "3"]  # two rounds: of three steps, and of one
    status, output = run(*TORCHRUN, SCRIPTS / "diloco.py", *words)
    assert status == 0, output
    saved = script_weights(tmp_path, "diloco")
    assert largest_relative_difference(saved, diloco_by_hand(alone=3, steps=4)) < WITHIN
    assert largest_relative_difference(saved, diloco_by_hand(alone=4, steps=4)) > 100 * WITHIN


def by_hand(model, batch, steps):
    """The weights of one process after as many steps, with the order and learning rates of scripts for one network."""
    warmup = steps // 2
    loader = DataLoader(range(batch * steps), batch, shuffle=True, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    for step, rows in enumerate(loader):
        optimizer.param_groups[0]["lr"] = 0.1 * min((step + 1) / warmup, (steps - step) / (steps - warmup))
        step_by_hand(model, optimizer, rows.numpy())
    return model.state_dict()


def mlp():
    torch.manual_seed(1)
    layers = torch.nn.Flatten(), torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)
    return torch.nn.Sequential(*layers)


@pytest.mark.exhaustive  # 11_model_parallelism runs it
def test_tensor_parallel(tmp_path):
    write_data(tmp_path / "data")
    status, output = run(*TORCHRUN, SCRIPTS / "tensor_parallel.py", *short(tmp_path, "tensor_parallel"))
    assert status == 0, output
    assert "images/s, test accuracy" in output
    saved = script_weights(tmp_path, "tensor_parallel")
    assert [tuple(value.shape) for value in saved.values()] == [(1024, 784), (1024,), (10, 1024), (10,)]
    steps = IMAGES // 128
    assert largest_relative_difference(saved, by_hand(mlp(), 128, steps)) < WITHIN
    assert largest_relative_difference(saved, by_hand(mlp(), 128, steps - 1)) > 10 * WITHIN


@pytest.mark.exhaustive  # 11b_pipelines runs it
def test_a_pipeline_takes_the_steps_of_one_process(tmp_path):
    write_data(tmp_path / "data")
    few = ["--images", "640"]  # 10 steps, for the reason given above
    status, output = run(*TORCHRUN, SCRIPTS / "pipeline.py", *short(tmp_path, "pipeline"), *few)
    assert status == 0, output
    saved = script_weights(tmp_path, "pipeline")
    assert largest_relative_difference(saved, by_hand(torch_cnn.build(seed=1), 64, 10)) < WITHIN
    assert largest_relative_difference(saved, by_hand(torch_cnn.build(seed=1), 64, 9)) > 100 * WITHIN


@pytest.mark.parametrize(
    "name", ["mpi_by_hand", pytest.param("horovod_torch", marks=[pytest.mark.exhaustive, needs("horovod")])]
)
def test_a_rank_that_raises_ends_all(name, tmp_path):
    write_data(tmp_path / "data")
    words = [*launcher(name), scripts_in_turn.__file__, tmp_path, name]
    status, output = run(*words, WORKSHOP_TEST_FAILING_RANK="1")
    assert status != 0
    assert f"isn't in {tmp_path / 'missing'}: give MNIST's folder with --data." in output
