"""Capture and compile a consumer's kernel over its tuning space and write the facts that ship: ``make moe-facts``.

``python -m warpplan.service.feeds.moe_facts.record_facts CONSUMER SITE OUT SCHEME… [--bare]``: SITE is a folder that
the consumer's wheel was installed into; ``--bare`` captures only. Needs Triton, no GPU; a second or two a tile.
"""

from __future__ import annotations

import datetime
import gzip
import sys
from importlib.metadata import distributions
from pathlib import Path

from warpplan.planner.errors import WarpplanError
from warpplan.service.feeds.moe_facts.moe_kernels import SGLANG, VLLM, MoeTile, captured, compiled
from warpplan.service.feeds.moe_facts.moe_schemes import SCHEMES
from warpplan.service.feeds.moe_facts.shipped_facts import RecordedFacts, TileFacts, dumps, file_name, kernel_digest
from warpplan.service.feeds.moe_facts.tuning_space import tiles

COMPILED_STAGES = 3
BARE = "--bare"
"""Captures only."""


def record(consumer: str, site: Path, scheme_name: str, *, compile_too: bool = True) -> RecordedFacts:
    """The facts of every tile of ``scheme_name``; without ``compile_too`` registers are left to be estimated."""
    import triton

    kernel = {"vllm": VLLM, "sglang": SGLANG}[consumer]
    scheme, function = SCHEMES[scheme_name], kernel.load(site)
    found: dict[MoeTile, TileFacts] = {}
    for tile in tiles(scheme):
        try:
            facts = captured(kernel, function, scheme, tile)
        except WarpplanError as error:
            print(error, flush=True)  # this Triton cannot: no job with it can run the tile either
            continue
        found[tile] = TileFacts(facts)
        if not compile_too:
            continue
        try:
            report = compiled(kernel, function, scheme, tile, COMPILED_STAGES)
            found[tile] = TileFacts(facts, report.registers, report.spill_bytes)
        except WarpplanError as error:
            print(error, flush=True)
    version = next(d.version for d in distributions(path=[str(site)]) if d.name == consumer)
    digest = kernel_digest(site / kernel.path, kernel.function)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return RecordedFacts(consumer, version, digest, triton.__version__, today, found)


def main(words: list[str]) -> None:
    consumer, site, out, *schemes = (word for word in words if word != BARE)
    for name in schemes:
        text = dumps(record(consumer, Path(site), name, compile_too=BARE not in words))
        # mtime=0: the same facts are the same bytes.
        (Path(out) / file_name(consumer, name)).write_bytes(gzip.compress(text, mtime=0))
        print(f"{consumer} {name}: {len(text)} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
