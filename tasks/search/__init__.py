"""Entry point `search`: show the documents that a trained model finds for one query. Not a stage: it makes no artifact."""
