"""One file is one deployment: what happens, in which order."""
