"""Prometheus metrics: families made from the brain's snapshots, and a small server for them."""
