"""Data sets that the project makes itself: no download, no file."""
