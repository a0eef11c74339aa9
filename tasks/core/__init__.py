"""Code that two or more stages need. A file here is small and rarely changes: a change to one re-runs every stage that imports it."""
