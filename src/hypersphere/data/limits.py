"""Limits on what a file may claim, checked before anything of that size is allocated.

Note [Claims of a file]: a header of a few bytes can announce an array of terabytes, and a gzip or
zip file of a few megabytes can unpack to a thousand times its size. So a reader asks first how
much the file says it holds, compares that with these limits, and never unpacks more than that.
"""

from __future__ import annotations

from pathlib import Path

from .errors import damaged

__all__ = ["MAX_BYTES", "MAX_RATIO", "check_claim"]

MAX_BYTES = 4 << 30  # of one file's content, unpacked: more than any set that is read here
MAX_RATIO = 200  # unpacked over packed; images and features compress by less than 50
FREE_BYTES = 64 << 20  # below this no ratio counts: a small file of zeros is harmless


def check_claim(
    path: Path, claimed: int, where: str | None = None, on_disk: int | None = None
) -> None:
    """Raise `DamagedData` if a file claims more content than it can honestly hold.

    Args:
        path: the file, for the message.
        claimed: bytes that it says it holds, unpacked.
        where: where a fresh copy is available. Default: not said.
        on_disk: bytes that it has, packed. Default: the size of the file.
    """
    if claimed <= FREE_BYTES:
        return
    packed = path.stat().st_size if on_disk is None else on_disk
    if claimed > MAX_BYTES:
        raise damaged(path, f"at most {MAX_BYTES:,} bytes of content", f"{claimed:,}", where)
    if claimed > MAX_RATIO * packed:
        raise damaged(
            path,
            f"content of at most {MAX_RATIO} times the file's {packed:,} bytes",
            f"a claim of {claimed:,} bytes",
            where,
        )
