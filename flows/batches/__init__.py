"""Batches of new data: their files and records, and their merge with the data set."""
