"""The demo: a run on this machine with emulated GPUs, a story and a comparison at its end."""
