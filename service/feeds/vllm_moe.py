"""vLLM's fused-MoE tables: ``$VLLM_TUNED_CONFIG_FOLDER/E=,N=,device_name=….json``.

One table a (experts, columns a rank, device, dtype), whatever the hidden size and top-k: the entry that is written is
the one for the model that was asked for, and two models that share a table cannot both have theirs in one folder. Both
products of a layer run with one entry, so the sum of their times is what is minimised. The table that int8 weights and
activations are looked up in is bfloat16's; it cannot be told apart and is not written for them.

Read: vLLM 0.33.0, ``model_executor/layers/fused_moe/fused_moe.py``, ``get_moe_configs``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from warpplan.service.feeds.feed_report import ExportReport, VerifyReport
from warpplan.service.feeds.moe.model_shapes import MoeLayer
from warpplan.service.feeds.moe.moe_choice import MoeChooser
from warpplan.service.feeds.moe.moe_feed import MoeConsumer, PlannedTable, export_tables, verify_tables
from warpplan.service.feeds.moe.table_files import TableKey
from warpplan.service.feeds.moe_facts.absent_imports import function_in, run_file
from warpplan.service.feeds.moe_facts.installed_consumer import InstalledConsumer, version_in
from warpplan.service.feeds.moe_facts.moe_kernels import VLLM
from warpplan.service.feeds.moe_facts.tuning_space import TOKENS
from warpplan.service.feeds.targets import FeedRequest

DESCRIPTION = "vLLM's fused-MoE tables, $VLLM_TUNED_CONFIG_FOLDER, from a model's name"
TESTED = ("0.33.0",)
SCHEMES = ("bfloat16", "fp8_w8a8", "fp8_w8a8_block", "int8_w8a16")


def device_in_name(name: str) -> str:
    """As vLLM spells a device in a file's name: blanks and slashes are underscores, all of the H200 family one."""
    spelt = re.sub(r"[\s/]+", "_", name)
    return "NVIDIA_H200" if "H200" in spelt.split("_") else spelt


def _place(key: TableKey, settings: Mapping[str, str]) -> str:
    return key.file_name(spaced=False)


def _plan(chooser: MoeChooser, layer: MoeLayer, key: TableKey) -> tuple[PlannedTable, ...]:
    best = {tokens: chooser.best(layer, tokens) for tokens in TOKENS}
    table: dict[int, dict[str, object]] = {tokens: {**found.config.entry()} for tokens, found in best.items()}
    return (PlannedTable(key, layer, table, {tokens: found.total_us for tokens, found in best.items()}),)


def _read(
    installed: InstalledConsumer | None, out: Path, key: TableKey, settings: Mapping[str, str]
) -> Mapping[int, Mapping[str, object]] | None:
    """vLLM's own answer where it is installed; else the file, as vLLM 0.33.0 reads it."""
    if installed is None:
        path = out / _place(key, settings)
        if not path.exists():
            return None
        plain = json.loads(path.read_bytes())
        plain.pop("triton_version", None)
        return {int(tokens): entry for tokens, entry in plain.items()}
    given: dict[str, Mapping[str, object]] = {
        "vllm.envs": {"VLLM_TUNED_CONFIG_FOLDER": str(out), "VLLM_BATCH_INVARIANT": False},
        "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda *_: key.device},
    }
    module = run_file(installed.site / VLLM.path, ("vllm", "torch"), given)
    block_n, block_k = key.block or (0, 0)
    found: Mapping[int, Mapping[str, object]] | None = function_in(module, "get_moe_configs")(
        key.experts, key.columns, key.selector or None, block_n, block_k
    )
    return found


def _triton(installed: InstalledConsumer | None, settings: Mapping[str, str]) -> str:
    """The Triton that the job has. No part of a table's name: known only where it is installed or given."""
    if "triton" in settings:
        return settings["triton"]
    beside = None if installed is None else version_in(installed.site, "triton")
    return beside or "not known"


VLLM_CONSUMER = MoeConsumer(
    "vllm", TESTED, SCHEMES, VLLM, sorts_always=False, shares=False, place=_place, plan=_plan, read=_read,
    triton=_triton, device_name=device_in_name,
)  # fmt: skip


def export(request: FeedRequest) -> ExportReport:
    """Write the tables of ``settings["model"]``; see :func:`~warpplan.service.feeds.moe.moe_feed.export_tables`."""
    return export_tables(VLLM_CONSUMER, request)


def verify(request: FeedRequest) -> VerifyReport:
    """What vLLM reads of them; see :func:`~warpplan.service.feeds.moe.moe_feed.verify_tables`."""
    return verify_tables(VLLM_CONSUMER, request)
