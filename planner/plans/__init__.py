"""A plan as data: templates, ranks, pieces of state, and what changes from plan to plan."""
