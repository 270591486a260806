"""The device of a rank: where its tensors live, and how the host reads and feeds them."""
