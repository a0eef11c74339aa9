"""Entry `search`: the documents that a trained model finds for one query. No stage: it makes no artifact."""
