"""The HTTP service: the application and its guards, a module of routes for each noun, their schemas, the server."""

EXPORTS = {
    "app": ("create_app", "SOLVERS"),
    "config_routes": ("KNOWN_ONLY", "item_of_query", "single_parameters"),
    "config_schemas": ("*",),
    "json_bodies": ("JsonRoute",),
    "server": ("*",),
}
