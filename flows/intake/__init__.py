"""New data: batches in an inbox, judgments, and how they are merged with the data set."""
