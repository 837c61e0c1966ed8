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
        site = Path(str(found.locate_file("")))
        return InstalledConsumer(name, _version(found, name, site), site)
    site = Path(where)
    if not (site / name).is_dir() and site.name == name:
        site = site.parent
    version = version_in(site, name)
    if version is None or not (site / name).is_dir():
        raise InvalidInput(
            f"no installed {name} in {where}: expected a folder with {name}/ and {name}-VERSION.dist-info/, "
            "such as an environment's site-packages",
            field="consumer", value=where,
        )  # fmt: skip
    return InstalledConsumer(name, version, site)


def version_in(site: Path, name: str) -> str | None:
    """The version of the package ``name`` that is installed in the folder ``site``; ``None`` where none is. What is
    written of other packages there is not read: an interrupted removal leaves some of it. Raises :class:`InvalidInput`
    where no version is written."""
    found = next(iter(metadata.distributions(name=name, path=[str(site)])), None)
    return None if found is None else _version(found, name, site)


def _version(found: metadata.Distribution, name: str, site: Path) -> str:
    try:
        version: str | None = found.version
    except (KeyError, UnicodeDecodeError):  # KeyError from Python 3.13 on
        version = None
    if version is None:
        raise InvalidInput(
            f"{name} in {site} does not say its version: its METADATA is damaged, so install it again",
            field="consumer", value=str(site),
        )  # fmt: skip
    return version


def require_tested(consumer: InstalledConsumer, tested: tuple[str, ...], *, untested: bool) -> None:
    """Raise :class:`InvalidInput` for a version that is not among ``tested``, unless ``untested`` allows it."""
    plain = consumer.version.partition("+")[0]
    if plain not in tested and not untested:
        raise InvalidInput(
            f"{consumer.name} {consumer.version} was not tested: its reader may have moved. Tested: "
            f"{', '.join(tested)}. Give --untested to go on all the same",
            field="consumer", value=consumer.version, limit=list(tested),
        )  # fmt: skip
