"""What a reader sees: one self-contained page a sweep, its figures, and frozen snapshots. Reads tables, never
run folders.
"""
