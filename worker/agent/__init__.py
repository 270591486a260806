"""The first process of a pod: supervises the ranks, answers the operator over HTTP."""
