"""From the collected archive to the store: unpack, check, report, keep by digest."""
