"""The README's picture is of this session. `make picture` takes it again."""

import os
import re

import pytest
from browser.lab import Lab
from PIL import Image

from workshop_lib.maintain import generate
from workshop_lib.paths import BUILD, ROOT

PICTURE = ROOT / "assets" / "session.png"
SIZE, CROPPED = (1000, 1080), (965, 1048)  # of the page in CSS pixels, and of what is shown: without its bars
PIXELS = 2  # for each of them
COLORS = 96  # enough for text and curves, in a third of the bytes
SESSION = """\
# %%
from workshop_lib import notebook, ranks
from workshop_lib.training.options import TrainOptions

# %%
team = ranks.start(2)
team

# %%
# %%ranks
import matplotlib.pyplot as plt
import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist

comm = MPI.COMM_WORLD
train = mnist.load("train")
mine = np.arange(comm.rank * 16, comm.rank * 16 + 16)
images = torch.tensor(train.images[mine]).float().flatten(1) / 255
labels = torch.tensor(train.labels[mine]).long()
weights = torch.zeros(784, 10, requires_grad=True)


def show(**pictures):
    figure, places = plt.subplots(1, 2, figsize=(5, 2.1), layout="constrained")
    for place, (name, picture) in zip(places, pictures.items()):
        place.imshow(picture[:, 3].reshape(28, 28), cmap="RdBu", vmin=-0.1, vmax=0.1)
        place.set_title(name.replace("_", " "), fontsize=17)
        place.axis("off")


# %%
# %%ranks
cross_entropy(images @ weights, labels).backward()  # 16 images on each rank
gradient = weights.grad.numpy()
average = comm.allreduce(gradient) / comm.size  # the ranks' mean, on each of them
show(my_gradient=gradient, our_average=average)

# %%
# %%ranks --catch --timeout 3
comm.Ssend(gradient, dest=1 - comm.rank)
comm.Recv(average, source=1 - comm.rank)

# %%
team.restart()
record = team.train(TrainOptions(epochs=2))
"""


@pytest.mark.exhaustive  # what it shows, the other tests here see, too
@pytest.mark.timeout(400)
def test_a_session_looks_as_in_the_readme(browser, tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "session.ipynb").write_text(generate.notebook_json(SESSION))
    with Lab(browser, folder, tmp_path, pixels=PIXELS) as lab:
        lab.start()
        lab.open("session.ipynb")
        lab.page.keyboard.press("Control+b")  # without the list of files
        lab.page.set_viewport_size(dict(zip(("width", "height"), SIZE, strict=True)))
        lab.begin_all()
        late = re.compile(r"epoch 2 of 2, step [2-4]\d\d")
        lab.page.locator(".workshop-dashboard", has_text=late).wait_for(timeout=200_000)
        lab.page.evaluate("document.querySelectorAll('.jp-CodeCell')[3].scrollIntoView()")
        taken = lab.screenshot(BUILD / "screenshots" / "session.png", *SIZE)
        lab.wait_done(120)
        assert lab.errors() == [] and lab.too_wide() == []
        shown = "\n".join(output.text for output in lab.outputs())
    with Image.open(taken) as picture:
        cropped = picture.convert("RGB").crop((0, 0, *(PIXELS * length for length in CROPPED)))
        cropped.quantize(COLORS).save(taken, optimize=True)
    assert taken.stat().st_size < 300_000
    assert "ranks 0, 1: at In[5], line 2" in shown and "comm.Ssend(gradient, dest=1 - comm.rank)" in shown
    if os.environ.get("WORKSHOP_PICTURE") == "1":
        PICTURE.write_bytes(taken.read_bytes())
