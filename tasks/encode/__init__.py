"""Stage `encode`: the whole corpus becomes vectors, shard by shard, resumable."""
