"""What makes a results folder provable: the chain, the signing key, the seal, the check."""
