"""TREC's formats: this project's runs, runs and qrels of other programs, and escaped ids."""
