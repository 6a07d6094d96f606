"""Drivers carry out what methods ask for: on a process group, or among simulated workers in lock-step."""
