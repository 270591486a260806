"""The embedded demo: the operator's decision loop over processes of this machine, with a script.

Nothing here decides; it prepares a run, feeds it events, shows it, and sums it up.
"""
