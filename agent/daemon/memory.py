"""How the daemon's process handles its memory: garbage collections, and what is returned to the system."""

import ctypes
import gc

import pyarrow as pa

RETURN_MS = 60_000
"""How often free memory is returned."""

_LIBC = ctypes.CDLL(None)
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of glibc's mallopt, from its malloc.h."""


def collect_rarely() -> None:
    """Let full garbage collections come rarely: each stops all threads, 0.3 s with 1,500 rewound series.

    What is kept holds no cycles, so that almost all is freed without them.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


def take_carefully() -> None:
    """Let memory that was needed once return to the system: 100,000 keys need much of it when they are first read.

    Arrow's own allocator keeps it, and so does glibc, which by itself takes ever larger arrays from its heaps and has
    a heap for each thread. Other C libraries are left as they are.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        _LIBC.mallopt(_M_ARENA_MAX, 2)


def return_free() -> None:
    """Return what is free within glibc's heaps: by itself it only returns their ends."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
