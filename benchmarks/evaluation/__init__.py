"""How good are the planner's methods on compositions that nobody tuned them for?

Here live trials of a method on a composition, the references they are measured against, and their
summary as table, JSON and picture.  Nothing here trains or searches by itself: every plan comes
from `planner.api`, so a method is judged as a user would meet it.
"""
