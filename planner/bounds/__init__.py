"""What is known of a loop without search: MinII, start windows and dominance cuts, and the relaxation to time alone,
with longest paths that exclusion on units makes tighter."""
