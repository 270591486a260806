"""From other trainers' arguments to a HeddleJob, and a list of what has no counterpart."""
