"""A file a mechanism, composed from codecs, reducers and schedules; each reads like its papers' algorithm boxes."""
