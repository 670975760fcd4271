"""The `charter` command: parses, calls the layers below, prints."""
