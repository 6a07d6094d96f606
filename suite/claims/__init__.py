"""Claims of papers as data, the checks that decide them, and the verdicts on record."""
