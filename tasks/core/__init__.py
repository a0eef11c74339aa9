"""What two or more stages need. A file here is small and still: a change to one re-runs every stage that imports it."""
