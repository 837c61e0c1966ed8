"""Where a consumer is installed, which version it is, and whether that version was tested."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from warpplan.planner.errors import InvalidInput


@dataclass(frozen=True)
class InstalledConsumer:
    """``site`` is the folder that holds the package."""

    name: str
    version: str
    site: Path


def find_consumer(name: str, where: str = "") -> InstalledConsumer | None:
    """The consumer in the folder ``where``, or in this environment where that is empty; ``None`` where this
    environment has none. ``where`` is a folder that packages are installed into, or the package's own.

    Raises :class:`InvalidInput` where ``where`` holds no installed ``name``.
    """
    if not where:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return None
        return InstalledConsumer(name, found.version, Path(str(found.locate_file(""))))
    site = Path(where)
    if not (site / name).is_dir() and site.name == name:
        site = site.parent
    found_there = next((d for d in metadata.distributions(path=[str(site)]) if d.name.lower() == name), None)
    if found_there is None or not (site / name).is_dir():
        raise InvalidInput(
            f"no installed {name} in {where}: expected a folder with {name}/ and {name}-VERSION.dist-info/, "
            "such as an environment's site-packages",
            field="consumer", value=where,
        )  # fmt: skip
    return InstalledConsumer(name, found_there.version, site)


def require_tested(consumer: InstalledConsumer, tested: tuple[str, ...], *, untested: bool) -> None:
    """Raise :class:`InvalidInput` for a version that is not among ``tested``, unless ``untested`` allows it."""
    plain = consumer.version.partition("+")[0]
    if plain not in tested and not untested:
        raise InvalidInput(
            f"{consumer.name} {consumer.version} was not tested: its reader may have moved. Tested: "
            f"{', '.join(tested)}. Give --untested to go on all the same",
            field="consumer", value=consumer.version, limit=list(tested),
        )  # fmt: skip
