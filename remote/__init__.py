"""What runs on the host: the agent, probes, trainers and scripts."""
