"""Every parser of foreign bytes, on mutations of real samples. `make fuzz` runs each for a minute."""
