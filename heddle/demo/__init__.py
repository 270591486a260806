"""The demo: a run on this machine with emulated GPUs, a scenario and a comparison at its end."""
