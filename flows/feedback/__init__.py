"""What people say of results: click logs and filled-in judgments, made into batches for the inbox."""
