"""Do the ranks of a job launch alike? Their records, step by step, and the first difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpplan.planner.errors import InvalidInput
from warpplan.service.agreement.choice_files import ChoiceLine, RankRecord
from warpplan.service.agreement.rank_choices import NO_ANSWER, ChoiceKey, RankChoices

Chosen = tuple[str, ...]
"""What a rank launched with for a key within one step, in order: more than one where its choice changed in the step;
empty where it had not asked yet."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks that chose alike; ``lookup`` is the number of the first one's lookup, 0 where it had not asked."""

    ranks: tuple[int, ...]
    chosen: Chosen
    lookup: int


@dataclass(frozen=True)
class ChoiceDifference:
    """The first step and key at which ranks differ; ``groups`` has the most ranks first."""

    step: int
    key: ChoiceKey
    groups: tuple[RankGroup, ...]


@dataclass(frozen=True)
class Agreement:
    """``difference`` is ``None`` where the ranks agree, and then ``choices`` are those in effect at the end.
    ``unshared`` are keys that only some ranks asked for, each with those ranks; ``steps`` counts up to the last one
    that was compared, ``lookups`` the choices that were."""

    ranks: tuple[int, ...]
    difference: ChoiceDifference | None
    choices: RankChoices
    unshared: tuple[tuple[ChoiceKey, tuple[int, ...]], ...]
    last_step: int
    lines: int


def compare_ranks(records: Sequence[RankRecord], *, same_lookups: bool = False, partial: bool = False) -> Agreement:
    """Compare ``records`` in whatever order they come.

    Two ranks differ in a step where both know a key and were given unlike choices for it in that step; a rank that does
    not ask again launches as before. With ``same_lookups`` a rank that has not asked for what another has differs
    too. A ``partial`` record is compared up to its last line.

    Raises :class:`InvalidInput` for records that are not of one job: a rank twice, another number of ranks, another
    job's name, and without ``partial`` for ranks that are missing.
    """
    ordered = sorted(records, key=lambda r: (r.header.rank, r.path))
    _require_one_job(ordered, partial)
    difference = _first_difference(ordered, same_lookups)
    choices, askers = RankChoices(), defaultdict[ChoiceKey, list[int]](list)
    for record in ordered:
        for key, choice in _in_effect(record).items():
            askers[key].append(record.header.rank)
            choices.put(key, choice)
    unshared = [(key, tuple(ranks)) for key, ranks in sorted(askers.items()) if len(ranks) < len(ordered)]
    return Agreement(
        tuple(r.header.rank for r in ordered), difference, RankChoices() if difference else choices, tuple(unshared),
        max((r.last_step for r in ordered), default=0), sum(len(r.lines) for r in ordered),
    )  # fmt: skip


def _require_one_job(ordered: Sequence[RankRecord], partial: bool) -> None:
    first = ordered[0]
    by_rank: dict[int, RankRecord] = {}
    for record in ordered:
        same = by_rank.setdefault(record.header.rank, record)
        if same is not record:
            paths = sorted((same.path, record.path))
            raise _bad(f"{paths[0]} and {paths[1]} are both of rank {record.header.rank}: give one record a rank")
        for what in ("world", "job"):
            here, there = getattr(record.header, what), getattr(first.header, what)
            if here != there:
                name = "number of ranks" if what == "world" else "job"
                raise _bad(f"{record.path} has the {name} {here!r} and {first.path} {there!r}: they are of two jobs")
    world = first.header.world
    beyond = next((rank for rank in by_rank if world and rank >= world), None)
    if beyond is not None:
        raise _bad(f"{by_rank[beyond].path} is of rank {beyond}, but the job has {world} ranks")
    missing = world - len(by_rank)
    if missing > 0 and not partial:
        such = next(rank for rank in range(world) if rank not in by_rank)
        raise _bad(
            f"the job has {world} ranks, and {missing} are missing, such as rank {such}: give the records of all, or "
            "--partial to compare those that there are"
        )


def _first_difference(ordered: Sequence[RankRecord], same_lookups: bool) -> ChoiceDifference | None:
    by_step: dict[int, dict[int, list[ChoiceLine]]] = defaultdict(lambda: defaultdict(list))
    for record in ordered:
        for line in record.lines:
            by_step[line.step][record.header.rank].append(line)
    state: dict[int, dict[ChoiceKey, ChoiceLine]] = {record.header.rank: {} for record in ordered}
    for step in sorted(by_step):
        # A record without an end says nothing of the steps after its last line.
        known = [r.header.rank for r in ordered if r.ended or step <= r.last_step]
        told = {rank: _chosen(by_step[step].get(rank, ()), state[rank]) for rank in known}
        lookups: dict[ChoiceKey, int] = {}
        for lines in by_step[step].values():
            for line in lines:
                lookups[line.key] = min(line.lookup, lookups.get(line.key, line.lookup))
        for key in sorted(lookups, key=lambda k: (lookups[k], k)):
            groups = _grouped(key, told, state, same_lookups)
            if len(groups) > 1:
                return ChoiceDifference(step, key, groups)
    return None


def _chosen(lines: Sequence[ChoiceLine], state: dict[ChoiceKey, ChoiceLine]) -> dict[ChoiceKey, Chosen]:
    """What a rank launched with in a step for each key that it asked for anew; ``state`` becomes that of its end."""
    told: dict[ChoiceKey, Chosen] = {}
    for line in lines:
        before = state.get(line.key)
        earlier = told.get(line.key) or ((before.choice,) if line.used_before and before is not None else ())
        told[line.key] = (*earlier, line.choice)
        state[line.key] = line
    return told


def _grouped(
    key: ChoiceKey, told: Mapping[int, Mapping[ChoiceKey, Chosen]], state: Mapping[int, Mapping[ChoiceKey, ChoiceLine]],
    same_lookups: bool,
) -> tuple[RankGroup, ...]:  # fmt: skip
    groups: dict[Chosen, list[int]] = {}
    for rank, mine in told.items():
        line = state[rank].get(key)
        chosen = mine.get(key) or ((line.choice,) if line is not None else ())
        if chosen or same_lookups:
            groups.setdefault(chosen, []).append(rank)
    found = []
    for chosen, ranks in groups.items():
        line = state[ranks[0]].get(key)
        found.append(RankGroup(tuple(ranks), chosen, 0 if line is None else line.lookup))
    return tuple(sorted(found, key=lambda group: (-len(group.ranks), group.ranks)))


def _in_effect(record: RankRecord) -> dict[ChoiceKey, str]:
    return {line.key: line.choice for line in record.lines}


def difference_lines(difference: ChoiceDifference) -> list[str]:
    """The difference in words."""
    lines = [f"step {difference.step}: {difference.key.label}"]
    for group in difference.groups:
        chosen = ", then ".join("no answer" if c == NO_ANSWER else c for c in group.chosen) or "did not ask"
        at = f", lookup {group.lookup}" if group.lookup else ""
        lines.append(f"  {ranks_text(group.ranks)}{at}: {chosen}")
    return lines


def ranks_text(ranks: Sequence[int]) -> str:
    """``ranks 0-6, 8`` of ascending numbers."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def _bad(message: str) -> InvalidInput:
    return InvalidInput(message, field="record")
