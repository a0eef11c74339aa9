"""Feedback on results: click logs and filled-in judgments, made into batches for the inbox."""
