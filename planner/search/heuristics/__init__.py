"""Heuristics: list scheduling and the partitions it is tried with, the schedule-first order, re-timing and compaction
of what is found. None of them proves anything; each returns schedules that obey every rule, or none."""

EXPORTS = {
    "compaction": ("compact_lifetimes",),
    "list_scheduling": ("first_schedule", "restage"),
    "modulo_scheduling": ("large_schedules",),
    "partition_relaxation": ("relaxed_partitions",),
    "retiming": ("fits", "order_arcs", "queue", "retime"),
    "serial_schedule": ("serial_schedule",),
}
