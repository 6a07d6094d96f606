"""The verbs of the command line, a module each; `bandwise.cli` has their index."""
