"""Where a system fails, and which judgments are missing."""
