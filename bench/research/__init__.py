"""What models are worth: see `__main__`."""
