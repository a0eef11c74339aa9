"""One run of the graph: plan, Prefect flow, stages."""
