"""New data: batches in an inbox, checked before they are merged."""
