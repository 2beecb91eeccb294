"""The data: the embedded persona dialogues, readers, datasets."""
