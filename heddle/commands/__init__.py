"""The commands of `heddle`, a module each; nothing is imported before it is called."""
