"""Stage `failures`: where a system fails, and which judgments are missing."""
