"""The project as git and DVC describe it: graph, lock file, worktrees."""
