"""Stage `encode`: encode the whole corpus as vectors, shard by shard; resumable."""
