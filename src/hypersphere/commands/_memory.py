"""Memory: how much there is, and what stays with the process between updates."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_memory", "memory_of_machine"]

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MOST = 1 << 30
CAPPED = 1 << 25  # the largest that older versions take


def memory_of_machine() -> int | None:
    """Bytes of main memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def keep_memory() -> bool:
    """Have the C library keep what is freed, up to a gigabyte, for the process to use again.

    By default it hands large blocks back to the system, which gives them out again page by page, a
    fault each: a fifth of the time of a training step on a processor. For processes that train;
    a library has no business to do this to the program that imports it.

    Returns:
        Whether there is such a C library and it agreed.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
        # This one first: once either is set, the library adapts neither by itself any more, and
        # blocks above the second would be handed back each time.
        taken = mallopt(M_MMAP_THRESHOLD, MOST) or mallopt(M_MMAP_THRESHOLD, CAPPED)
        return bool(taken) and bool(mallopt(M_TRIM_THRESHOLD, MOST))
    except (OSError, AttributeError):
        return False
