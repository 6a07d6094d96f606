"""What a reader sees: self-contained pages, their figures, a site of all of them, and what is published. Reads tables."""
