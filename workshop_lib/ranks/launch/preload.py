"""Everything that most ranks import, for the agent that forks them: nothing of the learner's, no thread, no device."""

import contextlib
import importlib
import os
import sys

# Importing debugpy takes a fifth of an engine's start. Ranks unblock it (engine.prepare).
sys.modules["debugpy"] = None  # type: ignore[assignment]
os.environ.setdefault("TQDM_POSITION", "0")  # tqdm reads it on import (cells.py says what for)
NEEDED = (
    "workshop_lib.ranks.call.engine",
    "workshop_lib.ranks.call.cells",
    "ipyparallel.engine.app",
    "ipyparallel.engine.datapub",
    "ipyparallel.controller.app",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
    "tornado.queues",
    "workshop_lib.ranks.call.debugger",
    "numpy.random",
    "tqdm.std",
)
TRAINING = ("torch._dynamo", "torch.distributed.fsdp", "workshop_lib.training.backends.ddp")  # with all that they need

for _name in NEEDED:
    importlib.import_module(_name)
for _name in TRAINING:
    with contextlib.suppress(ImportError):  # ranks that cannot train still show what MPI does
        importlib.import_module(_name)
