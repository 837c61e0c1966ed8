"""Every constant of the packing searches: meaning, unit, source, and what doubling it does.

Where a source is "chosen by hand on benchmarks/packing_instances.py", the value was tried on the generated memories of
numbers 0 and 2 to 4 and kept because it packed more of them, or the same ones sooner; no systematic sweep is recorded,
so the effect of doubling is "not measured" unless said. A technique that is switched off is left out: the search then
answers "unknown" more often, never wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PackingParams:
    """Switches and constants of :mod:`warpplan.planner.packing`; the defaults are what is measured and shipped.

    A *node* is one decision of the skyline search: a piece placed, or a floor raised. A *work second* is a second on a
    slow core, counted in nodes and in CP-SAT's deterministic time, so that a work limit means the same everywhere.
    """

    # Techniques. Each can be left out.

    first_fit: bool = True
    """First fit in decreasing order of size, area and length, before any search."""
    joining: bool = True
    """Pieces that must lie at one offset are joined before the search on a line."""
    skyline_search: bool = True
    """Depth-first skyline search with restarts. Off: only CP-SAT can prove a memory too small."""
    backjumping: bool = True
    """Failures are explained, and the skyline search jumps back over decisions that play no part in them. Off: it goes
    back to the last decision, and memory of failures covers all sections."""
    failure_memo: bool = True
    """What failed is remembered, across restarts too."""
    section_weights: bool = True
    """Branching prefers sections where failures were frequent."""
    beams: bool = True
    """Beam search over the skyline's nodes."""
    beam_completion: bool = True
    """CP-SAT re-decides the last decisions of a beam that wastes little."""
    order_model: bool = True
    """CP-SAT decides which of two pieces lies below the other, for all pairs."""
    clique_model: bool = True
    """CP-SAT decides offsets where conflicts are given, after first fit. Off: "unknown" where first fit fails."""

    # How the searches share the time: the next attempt is that of the search that lags most behind its share. A limit
    # only ends the sequence: a longer limit does all that a shorter one does, and more. All were chosen by hand on
    # benchmarks/packing_instances.py, numbers 0 and 2 to 4; none was doubled alone.

    runs_first_s: float = 2.0
    """Work seconds of skyline runs and beams before any other search: most memories need no more."""
    runs_share: float = 0.15
    """Share of the work for skyline runs and beams."""
    completion_share: float = 0.7
    """Share of the work for beams that CP-SAT completes."""
    order_share: float = 0.15
    """Share of the work for the order model of all pieces."""
    order_first_s: float = 4.0
    """Work seconds of the first attempt at the order model of all pieces, beyond writing it; each later one has twice
    as many as the one before."""

    # Work seconds.

    nodes_per_second: float = 40_000.0
    """Nodes a work second if there were no sections and no pieces. Measured: 30 to 95 µs a node, which is half a work
    second's or less with the two fields below. Doubled: work limits of the skyline search last twice as long."""
    sections_per_node_time: float = 35.0
    """This many sections take as long a node as everything else together (measured with ``nodes_per_second``)."""
    pieces_per_node_time: float = 1_000.0
    """This many pieces take as long a node as everything else together (measured with ``nodes_per_second``)."""
    order_model_rate: float = 1.5
    """Work seconds of CP-SAT's deterministic limit for one of the order model's: the model takes less time than its
    deterministic time says (measured: 0.35 to 1.3 s of the clock for one of them)."""
    clique_model_rate: float = 0.15
    """The same for the clique model, which takes more time than its deterministic time says (measured: 0.05 to 0.2)."""
    triples_per_second: float = 50_000.0
    """Triples of pieces written into the order model in a second on a slow core (measured)."""

    # Skyline runs and their restarts.

    seed: int = 0
    """Of the shuffled orders from the second cycle of runs on. Any value will do."""
    first_run_nodes: int = 500
    """Nodes of each of the first runs, one an order. Chosen by hand: MiniMalloc's published instances are packed by
    the first of them, or before."""
    restart_nodes: int = 5_000
    """Nodes of the shortest run between restarts; Luby's sequence multiplies it. Chosen by hand on
    benchmarks/packing_instances.py."""
    shuffle: float = 0.8
    """From the second cycle on, ranks of pieces are multiplied by a random factor within 1 ± this. Chosen by hand."""
    beam_shuffle: float = 0.4
    """The same for what pieces are worth to beams. Chosen by hand."""

    # Beams.

    first_beam_width: int = 30
    """Nodes kept a level in the first cycle's beams. Chosen by hand on benchmarks/packing_instances.py. Doubled: twice
    the time a beam."""
    beam_growth: int = 3
    """Later beams are this many times as wide, times Luby's sequence. Chosen by hand."""
    beam_weights: tuple[tuple[float, float], tuple[float, float], tuple[float, float]] = (
        (0.3, 0.0),
        (0.6, 1.0),
        (1.0, 1.0),
    )
    """Of the three beams of a cycle, in steps of the skyline: what placing a piece of mean area is worth, what a valley
    costs. Chosen by hand on benchmarks/packing_instances.py."""
    beam_children: int = 2
    """Children worked out for each node that is kept; the rest are dropped by an estimate. Chosen by hand. Doubled:
    nearly twice the time a beam."""
    completion_beam_width: int = 30
    """Nodes kept a level in the first beams that CP-SAT completes; the squares of Luby's sequence multiply them: wide
    beams pack a few large memories that no number of narrow ones does. Chosen by hand on
    benchmarks/packing_instances.py, numbers 0 and 2 to 4. Doubled: fewer are packed in 10 s."""
    completion_piece_worth: float = 0.1
    """What placing a piece of mean area is worth to these beams, in steps of the skyline. Chosen by hand."""
    completion_slack_cost: float = 0.15
    """What wasted memory costs these beams: steps of the skyline for slack of a mean piece's area. Chosen by hand."""
    completion_shuffle: float = 0.2
    """From the second trial on, what each piece is worth is multiplied by a random factor within 1 ± this. Chosen by
    hand."""
    completion_worth_factors: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """From the second trial on, what all pieces are worth is multiplied by one of these at random. Chosen by hand."""
    completion_slack_factors: tuple[float, ...] = (0.3, 1.0, 1.0, 2.0)
    """The same for what wasted memory costs. Chosen by hand."""
    completion_attempt_s: float = 4.0
    """Work seconds for each attempt of CP-SAT to complete a beam, writing the model included; Luby's sequence
    multiplies them. Chosen by hand on benchmarks/packing_instances.py."""
    completion_first_divisor: int = 3
    """CP-SAT first re-decides one piece in this many. Chosen by hand."""
    completion_step_divisor: int = 9
    """Each time that CP-SAT proves the pieces kept impossible, one piece in this many more is re-decided. Chosen by
    hand. Doubled: not measured."""

    # Memory of failures, and models.

    most_cliques: int = 2_000
    """Maximal cliques of given conflicts, of which there may be exponentially many, beyond which the answer is
    "unknown". Chosen by hand: kernels have a handful. Doubled: twice the time before such a layout is given up."""

    memo_sections: int = 12
    """Sets of sections that failures of one valley are remembered for: all are compared at every node. Chosen by
    hand on benchmarks/packing_instances.py. Doubled: more time a node, fewer nodes; not measured."""
    memo_failures: int = 200_000
    """Failures remembered before all are forgotten: some 100 MB (measured). Doubled: twice the memory."""
    listed_balances: int = 300
    """Ways in which the pieces that end between two full sections balance those that begin, listed one by one in the
    order model; more of them become one equation. Chosen by hand."""
    balanced_pieces: int = 14
    """Most pieces that end, or begin, for which such ways are counted: 2¹⁴ parts take milliseconds. Chosen by hand.
    Doubled: 2²⁸ parts fit no memory."""
