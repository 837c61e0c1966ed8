"""SGLang's fused-MoE tables: ``$SGLANG_MOE_CONFIG_DIR/configs/triton_3_8_0/E=,N=,device_name=….json``, and ``_down``.

The second product has a table of its own with ``_down`` at the end of its name; its row blocks are the first's, as
both run on one sorting of the tokens, so each pair is chosen with equal ones. Where a model's shared expert may run as
a further routed one, which SGLang does by default for some models, tables for that count of experts are written, too.

The folder replaces the package's own: SGLang reads none of its shipped tables while the variable is set.

Read: SGLang 0.5.23, ``srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py``, ``get_moe_configs``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from warpplan.service.feeds.feed_report import ExportReport, VerifyReport
from warpplan.service.feeds.moe.model_shapes import MoeLayer
from warpplan.service.feeds.moe.moe_choice import MoeChooser
from warpplan.service.feeds.moe.moe_feed import MoeConsumer, PlannedTable, Table, export_tables, verify_tables
from warpplan.service.feeds.moe.table_files import TableKey
from warpplan.service.feeds.moe_facts.absent_imports import function_in, run_file
from warpplan.service.feeds.moe_facts.installed_consumer import InstalledConsumer, version_in
from warpplan.service.feeds.moe_facts.moe_kernels import SGLANG
from warpplan.service.feeds.moe_facts.tuning_space import TOKENS
from warpplan.service.feeds.targets import FeedRequest

DESCRIPTION = "SGLang's fused-MoE tables, up and down, $SGLANG_MOE_CONFIG_DIR, from a model's name"
TESTED = ("0.5.23",)
SCHEMES = (
    "bfloat16", "fp8_w8a8", "fp8_w8a8_per_channel", "fp8_w8a8_block", "int8_w8a8_per_channel", "int8_w8a8_block",
    "int8_w8a16",
)  # fmt: skip
READER = "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py"
DEFAULT_TRITON = "3.8.0"
"""Triton of SGLang 0.5.23's requirements (torch 2.14), where none is installed beside it and none is given."""
FOLDER_VARIABLE = "SGLANG_MOE_CONFIG_DIR"
_one_reads = threading.Lock()
"""The environment is the whole process's."""


def device_in_name(name: str) -> str:
    """As SGLang spells a device in a file's name."""
    return name.replace(" ", "_")


def _triton(installed: InstalledConsumer | None, settings: Mapping[str, str]) -> str:
    """The job's Triton, which names the folder: as given, as installed beside SGLang, or the tested one."""
    if "triton" in settings:
        return settings["triton"]
    beside = None if installed is None else version_in(installed.site, "triton")
    return beside or DEFAULT_TRITON


def _place(key: TableKey, settings: Mapping[str, str]) -> str:
    folder = f"triton_{settings['triton'].replace('.', '_')}"
    return f"configs/{folder}/{key.file_name(spaced=True)}"


def _plan(chooser: MoeChooser, layer: MoeLayer, key: TableKey) -> tuple[PlannedTable, ...]:
    pairs = {tokens: chooser.best_pair(layer, tokens) for tokens in TOKENS}
    up: Table = {tokens: {**pair.up.entry()} for tokens, pair in pairs.items()}
    down: Table = {tokens: {**pair.down.entry()} for tokens, pair in pairs.items()}
    of_down = TableKey(key.experts, key.columns, key.device, key.selector, key.block, key.per_channel, down=True)
    return (
        PlannedTable(key, layer, up, {tokens: pair.up_us for tokens, pair in pairs.items()}),
        PlannedTable(of_down, layer, down, {tokens: pair.down_us for tokens, pair in pairs.items()}),
    )


def _read(
    installed: InstalledConsumer | None, out: Path, key: TableKey, settings: Mapping[str, str]
) -> Mapping[int, Mapping[str, object]] | None:
    """SGLang's own answer where it is installed; else the file of exactly this Triton, as SGLang 0.5.23 reads it."""
    if installed is None:
        path = out / _place(key, settings)
        return {int(t): entry for t, entry in json.loads(path.read_bytes()).items()} if path.exists() else None
    given: dict[str, Mapping[str, object]] = {
        "sglang.srt.utils": {"get_device_name": lambda *_: key.device, "is_hip": lambda: False},
        "triton": {"__version__": settings["triton"]},
    }
    module = run_file(installed.site / READER, ("sglang", "torch", "triton"), given)
    block_n, block_k = key.block or (0, 0)
    with _one_reads:
        before = os.environ.get(FOLDER_VARIABLE)
        os.environ[FOLDER_VARIABLE] = str(out)
        try:
            found: Mapping[int, Mapping[str, object]] | None = function_in(module, "get_moe_configs")(
                key.experts, key.columns, key.selector or None, block_n, block_k,
                per_channel_quant=key.per_channel, down_moe=key.down,
            )  # fmt: skip
        except FileNotFoundError:
            return None  # it lists configs/, which is not there before anything was exported
        finally:
            if before is None:
                del os.environ[FOLDER_VARIABLE]
            else:
                os.environ[FOLDER_VARIABLE] = before
    return found


SGLANG_CONSUMER = MoeConsumer(
    "sglang", TESTED, SCHEMES, SGLANG, sorts_always=True, shares=True, place=_place, plan=_plan, read=_read,
    triton=_triton, device_name=device_in_name,
)  # fmt: skip


def export(request: FeedRequest) -> ExportReport:
    """Write the tables of ``settings["model"]``; see :func:`~warpplan.service.feeds.moe.moe_feed.export_tables`."""
    return export_tables(SGLANG_CONSUMER, request)


def verify(request: FeedRequest) -> VerifyReport:
    """What SGLang reads of them; see :func:`~warpplan.service.feeds.moe.moe_feed.verify_tables`."""
    return verify_tables(SGLANG_CONSUMER, request)
