"""Permission to spend: what is asked, what was granted, by whom, bound to which hashes."""
