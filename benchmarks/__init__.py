"""Charter beside its peers: each figure measured in one run, written to `results.json`."""
