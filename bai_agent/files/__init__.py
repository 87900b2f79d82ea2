"""Files, folders and descriptors of the operating system, for both programs."""
