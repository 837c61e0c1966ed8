"""Everything with a clock, a file or a socket: the command line, the HTTP service, the store, the feeds, the client.

The use cases are in ``workflow``; ``cli`` and ``http`` turn them into commands and routes, ``store`` keeps their
answers, ``solving`` runs plans that take long in processes of their own, ``feeds`` writes the caches that training jobs
read, ``views`` draws. A training job imports ``client`` alone, which needs nothing but the standard library.
"""

EXPORTS = {
    "config_request": ("canonical_json", "ConfigRequest"),
    "listening": ("environment", "key_part", "LEAST_US", "MOST_US"),
    "metrics": ("Metrics",),
}
