"""Preconditions of a run on this machine: its output folder, its plan, its room."""
