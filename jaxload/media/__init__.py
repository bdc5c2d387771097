"""From a folder of media to a dataset."""
