"""One rank process: trains, and changes from plan to plan."""
