"""New data: batches in an inbox, checked and merged with the data set."""
