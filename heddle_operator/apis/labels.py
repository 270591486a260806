"""Labels, annotations and names that mark what belongs to a job in the cluster."""

JOB_LABEL = "heddle.dev/job"
EPOCH_LABEL = "heddle.dev/epoch"
EVICTABLE_LABEL = "heddle.dev/evictable"
FREELY, ONE_AT_A_TIME = "true", "one-at-a-time"  # its values; without it a pod is protected
NODE_ANNOTATION, ORDINAL_ANNOTATION = "heddle.dev/node", "heddle.dev/ordinal"
CREATED_ANNOTATION = "heddle.dev/created-at"  # creationTimestamp has whole seconds only
WORKER = "worker"
AGENT_PORT = 8470
SAVE_ANNOTATION = "heddle.dev/checkpoint-requested-at"  # of a job: a time of RFC 3339
