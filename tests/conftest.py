"""What all tests share. One thread: tests of several kinds run at the same time on small machines."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# How long an example takes says more about the machine than about the program. The same examples every time: `make
# faults` is there to look for others.
settings.register_profile("lockstep", deadline=None, derandomize=True)
settings.register_profile("faults", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "lockstep"))

os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that; those of the tests
# must see it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
