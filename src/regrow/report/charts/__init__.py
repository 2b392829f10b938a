"""One chart a file, all in one frame."""
