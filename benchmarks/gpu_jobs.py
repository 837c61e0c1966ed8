"""Jobs in a child that has the GPU: an error of one costs its own result only."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from row_store import Row


def guarded(jobs: Sequence[Any], run: Any) -> Iterator[Row]:
    """Results in a child, which ends where a job leaves the GPU unusable."""
    from tl_launch import allow_scratch, ended

    warnings.simplefilter("ignore")
    allow_scratch()
    for job in jobs:
        try:
            yield run(job)
        except Exception as error:
            yield (result := ended(error))
            if "fatal" in result:
                os._exit(1)
