"""What every stage is made of: entry point, code digest, random draws, progress, resumed work."""
