"""What GPUs there are, what a plan costs on them, and which plan is best.

Here live the words that every package uses (`Composition`, `Workload`, `Plan`, `Seat`, `Piece`),
the one cost model, and the search.  Nothing here imports another package of Heddle, torch,
DeepSpeed or Kubernetes.
"""
