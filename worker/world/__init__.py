"""The process groups and links of a plan, and the pace of emulated devices."""
