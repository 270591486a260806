"""The course of a change of plan, decided step by step from what is observed."""
