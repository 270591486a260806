"""When a job asks for a plan, and when it adopts one."""
