"""The command `heddle`: training, the demo and conversion run on this machine."""
