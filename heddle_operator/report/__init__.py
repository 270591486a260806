"""What a decision looks like from outside: conditions, status, Events."""
