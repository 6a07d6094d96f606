"""Pages that no study owns: claims, and methods tried on a model of one's own."""
