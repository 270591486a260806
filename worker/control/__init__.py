"""How the processes of a pod and the ranks of an epoch talk: channels and stores."""
