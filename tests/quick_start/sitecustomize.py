"""Every Python that a test starts finds this first: scripts to take home start and end as soon as workshop_lib's own
processes do, which makes a tenth of the tests' time. See workshop_lib/__init__.py."""

import atexit
import gc
import os
import time


def wait_for_gloo():
    """See GLOO_ABORTED in workshop_lib/ranks/launch/scripts.py: in a test, a rank gives those threads their time."""
    if "RANK" in os.environ:  # torchrun's
        time.sleep(0.1)


gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)
atexit.register(wait_for_gloo)
