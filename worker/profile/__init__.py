"""Measure layers and links on the machine that it runs on: `heddle profile`."""
