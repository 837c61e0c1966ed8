"""What the planner is told and what it answers: ``dependence_graph``, ``device``, ``costs``, ``profile``, ``plan``,
``timeline``, ``tuning``, parameters of the searches, and ``codec``, which reads and writes them as JSON. Frozen
dataclasses that refuse what contradicts itself; nothing is decided here."""
