"""The host's side of Charter: Python 3.8, standard library only, packed into `agent.pyz`."""
