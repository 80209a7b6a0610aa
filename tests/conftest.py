"""What all tests share. One thread: tests of several kinds run at the same time on small machines."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
