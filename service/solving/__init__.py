"""Plans of anybody's loops: the queue in the store, the workers of a server, and the child process of each solve."""
