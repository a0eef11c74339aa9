"""The project as git and DVC keep it: graph, lock file, cache, worktrees."""
