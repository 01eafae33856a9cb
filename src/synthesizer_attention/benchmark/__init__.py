"""Speed and memory of each variant beside dot product attention, in the same rounds."""
