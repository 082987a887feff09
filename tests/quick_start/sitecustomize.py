"""Every Python that a test starts finds this first: scripts to take home start and end as soon as workshop_lib's own
processes do, which makes a tenth of the tests' time. See workshop_lib/__init__.py."""

import atexit
import gc

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
