"""Prints the digest of the agent that the sources (folder or zip) in argv[1] build."""

import hashlib
import sys

sys.path.insert(0, sys.argv[1])

from remote.agent.pack import build_agent

print(hashlib.sha256(build_agent()).hexdigest())
