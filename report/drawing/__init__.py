"""How things look: axes, marks, labels, numbers in words, tables of cells. Knows nothing of studies."""
