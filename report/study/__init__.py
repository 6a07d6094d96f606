"""The page of a study: its tables as data, pictures, sentences, speed, and frozen copies of it."""
