"""One file a paper, composed from codecs, reducers and schedules; each reads like the paper's algorithm box."""
