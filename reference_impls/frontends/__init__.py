"""Ways to train by a method: an optimizer, around an optimizer, in torch's hooks, across sharded nodes, simulated."""
