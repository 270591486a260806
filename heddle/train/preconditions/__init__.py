"""What must hold before a run on this machine may start: its output folder, its plan, its room."""
