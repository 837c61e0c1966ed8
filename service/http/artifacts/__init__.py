"""Files of consumers' caches over HTTP: the routes, and what may be kept."""

EXPORTS = {
    "artifact_routes": ("*",),
}
