"""The HTTP service: the application and its guards, a module of routes for each noun, their schemas, the server."""

EXPORTS = {
    "app": ("create_app", "SOLVERS"),
    "config_routes": ("item_of_query",),
    "config_schemas": ("*",),
    "server": ("*",),
}
