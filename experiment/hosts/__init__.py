"""Machines behind one door, by SSH or on this machine, and the agent's door on top of it."""
