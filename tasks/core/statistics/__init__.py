"""Tests of significance over queries: paired tests, power, clusters and groups of queries."""
