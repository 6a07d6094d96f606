"""What a method is made of: phases and buckets, collectives, the registry, randomness and compiled functions."""
